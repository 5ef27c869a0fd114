"""Measures of the branches' spectra, the metric that accumulates them, rules of collapse.

``BranchSpectra`` and ``StepCorrelation`` need torchmetrics, imported when they are first used.
"""

from typing import TYPE_CHECKING, Any

from rdm_solo.spectra.epoch_summary import Spectra
from rdm_solo.spectra.measures import (
    alignment,
    correlation,
    effective_rank,
    filter_curve,
    ideal_filter,
    leading,
    low_rank_spectrum,
    rankme,
    spearman,
)

if TYPE_CHECKING:
    from rdm_solo.spectra.branch_spectra import BranchSpectra, StepCorrelation

__all__ = [
    "BranchSpectra",
    "Spectra",
    "StepCorrelation",
    "alignment",
    "correlation",
    "effective_rank",
    "filter_curve",
    "ideal_filter",
    "leading",
    "low_rank_spectrum",
    "rankme",
    "spearman",
]


def __getattr__(name: str) -> Any:
    if name in ("BranchSpectra", "StepCorrelation"):
        from rdm_solo.spectra import branch_spectra

        return getattr(branch_spectra, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
