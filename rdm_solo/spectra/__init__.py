"""Measures of the branches' spectra, the metric that accumulates them, rules of collapse.

``BranchSpectra`` and ``StepCorrelation`` need torchmetrics, imported when they are first used.
"""

from typing import TYPE_CHECKING, Any

from rdm_solo.spectra.comparison import (
    alignment,
    filter_curve,
    ideal_filter,
    leading,
    spearman,
)
from rdm_solo.spectra.epoch_summary import Basis, Spectra
from rdm_solo.spectra.gaussianity import epps_pulley
from rdm_solo.spectra.matrices import correlation, low_rank_spectrum
from rdm_solo.spectra.moments import mean_share
from rdm_solo.spectra.ranks import (
    alpha_req,
    effective_rank,
    lidar,
    nesum,
    participation_ratio,
    rankme,
    stable_rank,
)
from rdm_solo.spectra.sphere import positive_distance, uniformity

if TYPE_CHECKING:
    from rdm_solo.spectra.branch_spectra import BranchSpectra
    from rdm_solo.spectra.step_correlation import StepCorrelation

__all__ = [
    "Basis",
    "BranchSpectra",
    "Spectra",
    "StepCorrelation",
    "alignment",
    "alpha_req",
    "correlation",
    "effective_rank",
    "epps_pulley",
    "filter_curve",
    "ideal_filter",
    "leading",
    "lidar",
    "low_rank_spectrum",
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
    if name == "BranchSpectra":
        from rdm_solo.spectra.branch_spectra import BranchSpectra

        return BranchSpectra
    if name == "StepCorrelation":
        from rdm_solo.spectra.step_correlation import StepCorrelation

        return StepCorrelation
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
