"""The paper's lemmas and theorems, and a filter's effect on a spectrum.

Zhuo et al., "Towards a Unified Theoretical Understanding of Non-contrastive Learning via Rank
Differential Mechanism", ICLR 2023. Letters are the paper's. Docstrings note omissions and errors
of the printed text.
"""

from rdm_solo.spectra.comparison import ideal_filter
from rdm_solo.theory.theorems import (
    conditional_covariance,
    equivalent_filter,
    filtered_eigenvalues,
    kind,
    linear_setting,
    mean_correlation,
    optimal_predictor,
    positive_correlation,
    rank_difference,
    updated_eigenvalues,
)

__all__ = [
    "conditional_covariance",
    "equivalent_filter",
    "filtered_eigenvalues",
    "ideal_filter",
    "kind",
    "linear_setting",
    "mean_correlation",
    "optimal_predictor",
    "positive_correlation",
    "rank_difference",
    "updated_eigenvalues",
]
