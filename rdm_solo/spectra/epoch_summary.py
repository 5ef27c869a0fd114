"""An epoch's spectra for a reader: eigenvalues, curves, and scalars by name."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rdm_solo.spectra import comparison, lda, ranks
from rdm_solo.spectra.matrices import noise_floor
from rdm_solo.spectra.moments import Moments


@dataclass  # not frozen: torchmetrics copies what a metric gives field by field
class Basis:
    """What an epoch's numbers are of: so many rows of ``dim`` numbers, as they come or
    ``normalized`` to length 1, all of them or ``sampled``; of ``pair_rows`` of them all pairs were
    read, for uniformity.

    >>> print(Basis(512, 64, True, False, 512))  # doctest: +ELLIPSIS
    512 rows of 64 dimensions, scaled to length 1. Uncentred: effective ranks, RankMe, ...
    """

    rows: int
    dim: int
    normalized: bool
    sampled: bool
    pair_rows: int

    def __str__(self) -> str:
        scaled = "scaled to length 1" if self.normalized else "as they come"
        of = ", sampled from more" if self.sampled else ""
        return (
            f"{self.rows} rows of {self.dim} dimensions{of}, {scaled}. Uncentred: effective ranks, "
            "RankMe, stable rank, participation ratio. Around the mean: NESum, alpha-ReQ, LiDAR. "
            f"Uniformity: all pairs of {self.pair_rows} rows."
        )

    @property
    def warning(self) -> str | None:
        """In words, where there are too few rows for these dimensions.

        >>> print(Basis(32, 64, True, False, 32).warning)  # doctest: +ELLIPSIS
        N=32 rows are no more than k=64 dimensions: no rank can be above 32, and ...
        """
        if self.sampled:
            return (
                f"spectra at k={self.dim} are those of N={self.rows} sampled rows. The effective "
                "rank of a flat spectrum comes out too low (1/i at k=8192, N=1024: 0.41 of the "
                "truth), that of a steep one does not (1/i^2: 0.996)."
            )
        if self.rows <= self.dim:
            return (
                f"N={self.rows} rows are no more than k={self.dim} dimensions: no rank can be "
                f"above {self.rows}, and ranks come out lower than those of more rows."
            )
        return None


@dataclass
class Spectra:
    """Eigenvalues, filter curves and scalars of an epoch; :meth:`BranchSpectra.compute` makes it.

    ``rows`` entered the eigenvalues and the curves; where they were ``sampled`` from more, these
    have ``min(N, k)`` entries. ``leading`` eigenvalues hold 99.99 % of the target's sum. What
    needs positives is NaN without them. ``lam_logits`` are those before a softmax, where there is
    one, ``lam_covariance`` those of the targets around their mean. ``dimensions`` is how many there
    are of the outputs that collapse is judged by. ``basis`` says in words what the numbers were
    computed from, and warns where there are too few rows.
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
    basis: Basis
    scalars: dict[str, float]
    lam_logits: Tensor | None = None

    @property
    def rows(self) -> int:
        """How many entered."""
        return self.basis.rows

    @property
    def sampled(self) -> bool:
        """Whether they were sampled from more."""
        return self.basis.sampled

    def arrays(self) -> dict[str, Tensor]:
        """Eigenvalues, curves and counts by the names that they have on disk."""
        values = {**vars(self), "rows": self.rows, "sampled": self.sampled}
        return {
            name: torch.as_tensor(value)
            for name, value in values.items()
            if name not in ("scalars", "basis") and value is not None
        }


def summarize(
    moments: Moments,
    scalars: dict[str, Tensor],
    basis: Basis,
    m: int,
) -> Spectra:
    """The curves and further scalars of an epoch's moments; arrays come to the CPU."""
    moments = moments._replace(
        **{k: x.cpu() for k, x in moments._asdict().items() if x is not None}
    )
    lam_z = moments.lam_z
    leading = comparison.leading(lam_z)
    curve = comparison.filter_curve(moments.lam_p, lam_z)
    # The stricter curve: the online branch's second moment along the target's own directions.
    directional = comparison.filter_curve(moments.energy_p, lam_z)
    lam_plus = torch.full_like(lam_z, torch.nan) if moments.lam_plus is None else moments.lam_plus
    # Directions of rounding noise have no eigenvectors that would mean anything.
    m = max(1, min(m, int((lam_z > noise_floor(lam_z)).sum())))
    scalars = scalars | {
        **_ranks(moments, basis.dim),
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
        dimensions=basis.dim,
        basis=basis,
        scalars={name: float(value) for name, value in scalars.items()},
    )


def _ranks(moments: Moments, dim: int) -> dict[str, Tensor]:
    """Every measure that reads one spectrum; what a spectrum does not allow is left out."""
    lam_p, lam_z, lam_cov = moments.lam_p, moments.lam_z, moments.lam_covariance
    online, target = ranks.effective_rank(lam_p), ranks.effective_rank(lam_z)
    found = {
        "erank/online": online,
        "erank/target": target,
        "erank/gap": target - online,
        "erank/projection": ranks.effective_rank(moments.lam_y),
    }
    for branch, lam in (("online", lam_p), ("target", lam_z)):
        found[f"rankme/{branch}"] = ranks.rankme(lam)
        found[f"stable_rank/{branch}"] = ranks.stable_rank(lam)
        found[f"participation_ratio/{branch}"] = ranks.participation_ratio(lam)
    found["nesum/target"] = ranks.nesum(lam_cov)
    alpha, r2 = ranks.alpha_req(lam_cov)
    if bool(alpha.isfinite()):
        found |= {"alpha_req/target": alpha, "alpha_req_r2/target": r2}
    if moments.lam_lidar is not None:
        found["lidar/target"] = lda.smoothed_rank(moments.lam_lidar, dim, lda.EPSILON)
    if moments.lam_centred is not None:
        found["erank/centred"] = ranks.effective_rank(moments.lam_centred)
    if moments.lam_plus is not None:
        found["erank/positive"] = ranks.effective_rank(moments.lam_plus)
    return found


def _monotonicity(curve: Tensor, lam: Tensor) -> Tensor:
    real = curve.isfinite()
    return comparison.spearman(curve[real], lam[real])
