"""An epoch's spectra for a reader: eigenvalues, curves, and scalars by name."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rdm_solo.spectra import measures
from rdm_solo.spectra.moments import Moments


@dataclass
class Spectra:
    """Eigenvalues, filter curves and scalars of an epoch; :meth:`BranchSpectra.compute` makes it.

    ``rows`` entered the eigenvalues and the curves; where they were ``sampled`` from more, these
    have ``min(N, k)`` entries. ``leading`` eigenvalues hold 99.99 % of the target's sum. What
    needs positives is NaN without them. ``lam_logits`` are those before a softmax, where there is
    one. ``dimensions`` is how many there are of the outputs that collapse is judged by.
    """

    lam_online: Tensor
    lam_target: Tensor
    lam_positive: Tensor
    lam_projection: Tensor
    filter_curve: Tensor
    filter_curve_directional: Tensor
    ideal_filter: Tensor
    leading: int
    dimensions: int
    rows: int
    sampled: bool
    scalars: dict[str, float]
    lam_logits: Tensor | None = None

    def arrays(self) -> dict[str, Tensor]:
        """Eigenvalues, curves and counts by the names that they have on disk."""
        return {
            name: torch.as_tensor(value)
            for name, value in vars(self).items()
            if name != "scalars" and value is not None
        }


def summarize(
    moments: Moments,
    scalars: dict[str, Tensor],
    dimensions: int,
    rows: int,
    m: int,
    sampled: bool,
) -> Spectra:
    """The curves and further scalars of an epoch's moments; arrays come to the CPU."""
    moments = moments._replace(
        **{k: x.cpu() for k, x in moments._asdict().items() if x is not None}
    )
    lam_z = moments.lam_z
    leading = measures.leading(lam_z)
    curve = measures.filter_curve(moments.lam_p, lam_z)
    # The stricter curve: the online branch's second moment along the target's own directions.
    directional = measures.filter_curve(moments.energy_p, lam_z)
    lam_plus = torch.full_like(lam_z, torch.nan) if moments.lam_plus is None else moments.lam_plus
    # Directions of rounding noise have no eigenvectors that would mean anything.
    m = max(1, min(m, int((lam_z > measures.noise_floor(lam_z)).sum())))
    scalars = scalars | {
        **_ranks(moments),
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
                scalars[f"{name}{weights}{rule}"] = measures.weighted_cosine(
                    energy, norm, lam_z, count, weighted=bool(weights)
                )
    return Spectra(
        lam_online=moments.lam_p,
        lam_target=lam_z,
        lam_positive=lam_plus,
        lam_projection=moments.lam_y,
        filter_curve=curve,
        filter_curve_directional=directional,
        ideal_filter=measures.ideal_filter(lam_plus, lam_z),
        leading=leading,
        dimensions=dimensions,
        rows=rows,
        sampled=sampled,
        scalars={name: float(value) for name, value in scalars.items()},
    )


def _ranks(moments: Moments) -> dict[str, Tensor]:
    online = measures.effective_rank(moments.lam_p)
    target = measures.effective_rank(moments.lam_z)
    ranks = {
        "erank/online": online,
        "erank/target": target,
        "erank/gap": target - online,
        "erank/projection": measures.effective_rank(moments.lam_y),
        "rankme/online": measures.rankme(moments.lam_p),
        "rankme/target": measures.rankme(moments.lam_z),
    }
    if moments.lam_centred is not None:
        ranks["erank/centred"] = measures.effective_rank(moments.lam_centred)
    if moments.lam_plus is not None:
        ranks["erank/positive"] = measures.effective_rank(moments.lam_plus)
    return ranks


def _monotonicity(curve: Tensor, lam: Tensor) -> Tensor:
    real = curve.isfinite()
    return measures.spearman(curve[real], lam[real])
