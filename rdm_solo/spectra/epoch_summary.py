"""An epoch's spectra for a reader: eigenvalues, curves, and scalars by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rdm_solo.spectra.measures import (
    effective_rank,
    filter_curve,
    ideal_filter,
    leading,
    noise_floor,
    rankme,
    spearman,
    weighted_cosine,
)
from rdm_solo.spectra.moments import Directions, Moments

__all__ = ["Spectra", "summarize"]


@dataclass
class Spectra:
    """Eigenvalues, filter curves and scalars of an epoch; :meth:`BranchSpectra.compute` makes it.

    ``rows`` entered the eigenvalues and the curves; where they were ``sampled`` from more, these
    have ``min(N, k)`` entries. ``leading`` eigenvalues hold 99.99 % of the target's sum. What
    needs positives is NaN without them. ``lam_logits`` are those before a softmax, where there is
    one.
    """

    lam_online: Tensor
    lam_target: Tensor
    lam_positive: Tensor
    lam_projection: Tensor
    curve: Tensor
    curve_directional: Tensor
    scalars: dict[str, float]
    rows: int
    ideal: Tensor
    leading: int
    sampled: bool = False
    lam_logits: Tensor | None = None

    def arrays(self) -> dict[str, Tensor]:
        """Eigenvalues, curves and counts by the names that they have on disk."""
        arrays = {
            "lam_online": self.lam_online,
            "lam_target": self.lam_target,
            "lam_positive": self.lam_positive,
            "lam_projection": self.lam_projection,
            "filter_curve": self.curve,
            "filter_curve_directional": self.curve_directional,
            "ideal_filter": self.ideal,
            "leading": torch.tensor(self.leading),
            "rows": torch.tensor(self.rows),
            "sampled": torch.tensor(self.sampled),
        }
        return arrays if self.lam_logits is None else {**arrays, "lam_logits": self.lam_logits}


def summarize(moments: Moments, variance: Tensor, rows: int, m: int, sampled: bool) -> Spectra:
    """The curves and scalars of an epoch's moments; arrays come to the CPU."""
    moments = _on_cpu(moments)
    lam_z = moments.lam_z
    count = leading(lam_z)
    curve = filter_curve(moments.lam_p, lam_z)
    # The stricter curve: the online branch's second moment along the target's own directions.
    directional = filter_curve(moments.online.energy, lam_z)
    lam_plus = torch.full_like(lam_z, torch.nan)
    if moments.lam_plus is not None:
        lam_plus = moments.lam_plus
    # Directions of rounding noise have no eigenvectors that would mean anything.
    m = max(1, min(m, int((lam_z > noise_floor(lam_z)).sum())))
    scalars = {
        **_ranks(moments),
        **_alignments("alignment/online_target", moments.online, lam_z, count, m),
        **_alignments("alignment/target_positive", moments.positive, lam_z, count, m),
        "filter/monotonicity": _monotonicity(curve[:count], lam_z[:count]),
        "filter/monotonicity_directional": _monotonicity(directional[:count], lam_z[:count]),
        "feature/variance": variance,
    }
    return Spectra(
        lam_online=moments.lam_p,
        lam_target=lam_z,
        lam_positive=lam_plus,
        lam_projection=moments.lam_y,
        curve=curve,
        curve_directional=directional,
        scalars={name: float(value) for name, value in scalars.items()},
        rows=rows,
        ideal=ideal_filter(lam_plus, lam_z),
        leading=count,
        sampled=sampled,
    )


def _on_cpu(moments: Moments) -> Moments:
    def moved(x: Any) -> Any:
        if isinstance(x, Directions):
            return Directions(*map(moved, x))
        return None if x is None else x.cpu()

    return Moments(*map(moved, moments))


def _ranks(moments: Moments) -> dict[str, Tensor]:
    online, target = effective_rank(moments.lam_p), effective_rank(moments.lam_z)
    ranks = {
        "erank/online": online,
        "erank/target": target,
        "erank/gap": target - online,
        "erank/projection": effective_rank(moments.lam_y),
        "rankme/online": rankme(moments.lam_p),
        "rankme/target": rankme(moments.lam_z),
    }
    if moments.lam_plus is not None:
        ranks["erank/positive"] = effective_rank(moments.lam_plus)
    return ranks


def _alignments(
    name: str, directions: Directions | None, lam: Tensor, count: int, m: int
) -> dict[str, Tensor]:
    """By the 99.99 % rule and with the paper's m, unweighted as printed and weighted."""
    if directions is None:
        return {}
    energy, norm = directions
    return {
        f"{name}{weights}{rule}": weighted_cosine(energy, norm, lam, of, weighted)
        for rule, of in (("", count), ("_paper_m", m))
        for weights, weighted in (("", False), ("_weighted", True))
    }


def _monotonicity(curve: Tensor, lam: Tensor) -> Tensor:
    real = curve.isfinite()
    return spearman(curve[real], lam[real])
