"""An epoch's results: eigenvalues, curves, and scalars by name."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rdm_solo.spectra import comparison, ranks
from rdm_solo.spectra.moments import Moments
from rdm_solo.spectra.rows import smoothed_rank


@dataclass
class Spectra:
    """Eigenvalues, filter curves and scalars of an epoch, from :meth:`BranchSpectra.compute`.

    Arrays have k entries, or ``min(N, k)`` if rows were sampled; arrays of positives are NaN if
    there were none. ``lam_covariance`` is the spectrum of the centred targets, ``lam_logits`` that
    of the logits before a softmax. The first ``leading`` eigenvalues have 99.99 % of the target's
    sum. ``dimensions`` is the dimension of the outputs on which collapse is judged. ``rows`` is the
    number of rows from which eigenvalues were computed: a sample if ``sampled``, otherwise all.
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
    warning: str | None  # set if there are too few rows for the dimensions
    lam_logits: Tensor | None = None
    features_dimensions: int | None = None  # of the backbone's features, if they were measured

    def arrays(self) -> dict[str, Tensor]:
        """Return eigenvalues, curves and counts under their names in files."""
        arrays = {}
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                # torchmetrics squeezes arrays with a single element.
                arrays[name] = value.reshape(-1)
            elif isinstance(value, int):
                arrays[name] = torch.as_tensor(value)
        return arrays


def summarize(
    moments: Moments,
    scalars: dict[str, Tensor],
    m: int,
    rows: int,
    dim: int,
    sampled: bool,
    spacing: float,
) -> Spectra:
    """Compute an epoch's results from its moments on the CPU, and add ``scalars`` to them.

    ``spacing`` is the eps of the online outputs' dtype.
    """
    moments.apply(Tensor.cpu)
    lam_z = moments.lam_z
    leading = comparison.leading(lam_z)
    # Behind a bottleneck, the online outputs have only rounding noise in many directions. Rounding
    # to a dtype adds up to about eps^2 / 6k of the total to each of k directions (measured).
    share = max(ranks.ROUNDING, spacing**2 / dim)
    noise = share * moments.lam_p.sum()
    lam_p = moments.lam_p.where(moments.lam_p > noise, 0.0)
    energy_p = moments.energy_p.where(moments.energy_p > noise, 0.0)
    curve = comparison.filter_curve(lam_p, lam_z)
    # Stricter than pairing by rank: the online second moment along the target's eigenvectors.
    directional = comparison.filter_curve(energy_p, lam_z)
    lam_plus = moments.lam_plus
    if lam_plus is None:
        lam_plus = torch.full_like(lam_z, torch.nan)
    # Exclude the eigenvectors of rounding noise, which are arbitrary.
    is_signal = lam_z > ranks.noise_floor(lam_z)
    m = max(1, min(m, int(is_signal.sum())))
    scalars |= _ranks(moments, rows, dim, sampled)
    for name, gain in (("", curve), ("_directional", directional)):
        order = comparison.monotonicity(gain[:leading], lam_z[:leading])
        scalars[f"filter/monotonicity{name}"] = order
    cosines = {"online_target": moments.cosine_p}
    if moments.cosine_plus is not None:
        cosines["target_positive"] = moments.cosine_plus
    for pair, values in cosines.items():
        for rule, count in (("", leading), ("_paper_m", m)):
            mean = comparison.mean_cosine(values, lam_z, count, weighted=False)
            weighted_mean = comparison.mean_cosine(values, lam_z, count, weighted=True)
            scalars[f"alignment/{pair}{rule}"] = mean
            scalars[f"alignment/{pair}_weighted{rule}"] = weighted_mean
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
        scalars=finite_scalars(scalars),
        warning=_warning(rows, dim, sampled),
    )


def finite_scalars(values: dict[str, Tensor]) -> dict[str, float]:
    """Return the values as numbers, without those that are NaN because they are undefined.

    Alpha-ReQ is undefined for few eigenvalues, and LiDAR for features that are far too large.
    """
    numbers = {name: float(value) for name, value in values.items()}
    return {name: number for name, number in numbers.items() if math.isfinite(number)}


def _warning(rows: int, dim: int, sampled: bool) -> str | None:
    """Return a warning if there are too few rows for the dimensions."""
    if sampled:
        return (
            f"spectra at k={dim} are computed from N={rows} sampled rows. This underestimates the "
            "effective rank of flat spectra (eigenvalues 1/i at k=8192, N=1024: 0.41 of the true "
            "value), but not of steep spectra (1/i^2: 0.996)."
        )
    if rows <= dim:
        return (
            f"there are only N={rows} rows for k={dim} dimensions: ranks cannot exceed {rows}, and "
            "they would be higher with more rows."
        )
    return None


def _ranks(moments: Moments, rows: int, dim: int, sampled: bool) -> dict[str, Tensor]:
    """Return all measures of a single spectrum that can be computed.

    RankMe is excluded for sampled rows. It depends on small singular values, and N rows have at
    most N of them (eigenvalues 1/i at k=6000, N=1024: 0.18 of the true value).
    """
    lam_p = moments.lam_p
    lam_z = moments.lam_z
    lam_covariance = moments.lam_covariance
    online = ranks.effective_rank(lam_p)
    target = ranks.effective_rank(lam_z)
    values = {
        "erank/online": online,
        "erank/target": target,
        "erank/gap": target - online,
        "erank/projection": ranks.effective_rank(moments.lam_y),
    }
    for branch, lam in (("online", lam_p), ("target", lam_z)):
        if not sampled:
            values[f"rankme/{branch}"] = ranks.rankme(lam, rows=rows)
        values[f"stable_rank/{branch}"] = ranks.stable_rank(lam)
        values[f"participation_ratio/{branch}"] = ranks.participation_ratio(lam)
    values["nesum/target"] = ranks.nesum(lam_covariance)
    alpha, r2 = ranks.alpha_req(lam_covariance)
    values["alpha_req/target"] = alpha
    values["alpha_req_r2/target"] = r2
    if moments.lam_lidar is not None:
        values["lidar/target"] = smoothed_rank(moments.lam_lidar, dim)
    if moments.lam_centred is not None:
        values["erank/centred"] = ranks.effective_rank(moments.lam_centred)
    if moments.lam_plus is not None:
        values["erank/positive"] = ranks.effective_rank(moments.lam_plus)
    return values
