"""Measures of the branches' spectra, the metric that accumulates them, rules of collapse.

``BranchSpectra`` imports torchmetrics, which takes seconds, on first use.
"""

from typing import TYPE_CHECKING, Any

from rdm_solo.spectra.comparison import alignment, filter_curve, ideal_filter, spearman
from rdm_solo.spectra.epoch_summary import Spectra
from rdm_solo.spectra.ranks import (
    alpha_req,
    correlation,
    effective_rank,
    nesum,
    participation_ratio,
    rankme,
    stable_rank,
)
from rdm_solo.spectra.rows import (
    epps_pulley,
    lidar,
    mean_share,
    positive_distance,
    uniformity,
)

if TYPE_CHECKING:
    from rdm_solo.spectra.branch_spectra import BranchSpectra

__all__ = [
    "BranchSpectra",
    "Spectra",
    "alignment",
    "alpha_req",
    "correlation",
    "effective_rank",
    "epps_pulley",
    "filter_curve",
    "ideal_filter",
    "lidar",
    "mean_share",
    "nesum",
    "participation_ratio",
    "positive_distance",
    "rankme",
    "spearman",
    "stable_rank",
    "uniformity",
]


def __getattr__(name: str) -> Any:
    if name != "BranchSpectra":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rdm_solo.spectra.branch_spectra import BranchSpectra

    return BranchSpectra
