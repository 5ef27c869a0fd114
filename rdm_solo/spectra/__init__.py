"""Measures of the branches' spectra, and the metric that accumulates them.

``BranchSpectra`` is imported on first use, because torchmetrics takes seconds to import.
"""

from typing import TYPE_CHECKING

from rdm_solo import import_on_first_use

if TYPE_CHECKING:
    from rdm_solo.spectra.branch_spectra import BranchSpectra
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

__getattr__ = import_on_first_use(
    __all__,
    "rdm_solo.spectra.ranks",
    "rdm_solo.spectra.comparison",
    "rdm_solo.spectra.rows",
    "rdm_solo.spectra.epoch_summary",
    "rdm_solo.spectra.branch_spectra",
)
