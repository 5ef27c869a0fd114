"""An epoch's results: eigenvalues, curves, and scalars by name."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rdm_solo.spectra import comparison, ranks
from rdm_solo.spectra.moments import Moments
from rdm_solo.spectra.rows import EPSILON, smoothed_rank


@dataclass
class Spectra:
    """Eigenvalues, filter curves and scalars of an epoch, from :meth:`BranchSpectra.compute`.

    Arrays have k entries, or ``min(N, k)`` if rows were sampled; without positives, theirs are NaN.
    ``lam_covariance`` is the spectrum of the centred targets, ``lam_logits`` that before a softmax.
    The first ``leading`` eigenvalues hold 99.99 % of the target's sum. Collapse is judged on
    outputs with ``dimensions`` dimensions. Eigenvalues were computed from ``rows`` rows: a sample
    if ``sampled``, otherwise all.
    """

    lam_online: Tensor
    lam_target: Tensor
    lam_positive: Tensor
    lam_projection: Tensor
    lam_covariance: Tensor
    filter_curve: Tensor
    filter_curve_directional: Tensor
    ideal_filter: Tensor
    leading: int
    dimensions: int
    rows: int
    sampled: bool
    scalars: dict[str, float]
    warning: str | None  # a sentence if the rows are too few for the dimensions
    lam_logits: Tensor | None = None

    def arrays(self) -> dict[str, Tensor]:
        """Return eigenvalues, curves and counts by their names on disk."""
        return {
            name: torch.as_tensor(value)
            for name, value in vars(self).items()
            if name not in ("scalars", "warning") and value is not None
        }


def summarize(
    moments: Moments, scalars: dict[str, Tensor], m: int, rows: int, dim: int, sampled: bool
) -> Spectra:
    """Return the results of an epoch's moments on the CPU, with these scalars added."""
    moments = moments._replace(
        **{k: x.cpu() for k, x in moments._asdict().items() if x is not None}
    )
    lam_z = moments.lam_z
    leading = comparison.leading(lam_z)
    curve = comparison.filter_curve(moments.lam_p, lam_z)
    # Stricter: the online branch's second moment along the target's eigenvectors.
    directional = comparison.filter_curve(moments.energy_p, lam_z)
    lam_plus = torch.full_like(lam_z, torch.nan) if moments.lam_plus is None else moments.lam_plus
    # Eigenvectors of rounding noise are arbitrary.
    m = max(1, min(m, int((lam_z > ranks.noise_floor(lam_z)).sum())))
    scalars = scalars | {
        **_ranks(moments, dim, sampled),
        "filter/monotonicity": _monotonicity(curve[:leading], lam_z[:leading]),
        "filter/monotonicity_directional": _monotonicity(directional[:leading], lam_z[:leading]),
    }
    for name, energy, norm in (
        ("alignment/online_target", moments.energy_p, moments.norm_p),
        ("alignment/target_positive", moments.energy_plus, moments.norm_plus),
    ):
        if energy is None or norm is None:
            continue
        for rule, count in (("", leading), ("_paper_m", m)):
            for weights in ("", "_weighted"):
                scalars[f"{name}{weights}{rule}"] = comparison.weighted_cosine(
                    energy, norm, lam_z, count, weighted=bool(weights)
                )
    return Spectra(
        lam_online=moments.lam_p,
        lam_target=lam_z,
        lam_positive=lam_plus,
        lam_projection=moments.lam_y,
        lam_covariance=moments.lam_covariance,
        filter_curve=curve,
        filter_curve_directional=directional,
        ideal_filter=comparison.ideal_filter(lam_plus, lam_z),
        leading=leading,
        dimensions=dim,
        rows=rows,
        sampled=sampled,
        scalars={name: float(value) for name, value in scalars.items()},
        warning=_warning(rows, dim, sampled),
    )


def _warning(rows: int, dim: int, sampled: bool) -> str | None:
    """Return a sentence if there are too few rows for the dimensions."""
    if sampled:
        return (
            f"spectra at k={dim} are those of N={rows} sampled rows. The effective rank of a flat "
            "spectrum is too low (1/i at k=8192, N=1024: 0.41 of the true value), that of a steep "
            "one is not (1/i^2: 0.996)."
        )
    if rows <= dim:
        return (
            f"N={rows} rows are no more than k={dim} dimensions: no rank can be above {rows}, and "
            "ranks are lower than with more rows."
        )
    return None


def _ranks(moments: Moments, dim: int, sampled: bool) -> dict[str, Tensor]:
    """Return every measure of a single spectrum, without those that cannot be computed.

    RankMe of sampled rows is left out: N rows have at most N nonzero singular values, and it
    counts small ones (1/i at k=6000, N=1024: 0.18 of the true value).
    """
    lam_p, lam_z, lam_cov = moments.lam_p, moments.lam_z, moments.lam_covariance
    online, target = ranks.effective_rank(lam_p), ranks.effective_rank(lam_z)
    values = {
        "erank/online": online,
        "erank/target": target,
        "erank/gap": target - online,
        "erank/projection": ranks.effective_rank(moments.lam_y),
    }
    for branch, lam in (("online", lam_p), ("target", lam_z)):
        if not sampled:
            values[f"rankme/{branch}"] = ranks.rankme(lam)
        values[f"stable_rank/{branch}"] = ranks.stable_rank(lam)
        values[f"participation_ratio/{branch}"] = ranks.participation_ratio(lam)
    values["nesum/target"] = ranks.nesum(lam_cov)
    alpha, r2 = ranks.alpha_req(lam_cov)
    if bool(alpha.isfinite()):
        values |= {"alpha_req/target": alpha, "alpha_req_r2/target": r2}
    if moments.lam_lidar is not None:
        values["lidar/target"] = smoothed_rank(moments.lam_lidar, dim, EPSILON)
    if moments.lam_centred is not None:
        values["erank/centred"] = ranks.effective_rank(moments.lam_centred)
    if moments.lam_plus is not None:
        values["erank/positive"] = ranks.effective_rank(moments.lam_plus)
    return values


def _monotonicity(curve: Tensor, lam: Tensor) -> Tensor:
    real = curve.isfinite()
    return comparison.spearman(curve[real], lam[real])
