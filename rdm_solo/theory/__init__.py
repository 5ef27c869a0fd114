"""The paper's lemmas and theorems, Theorem 4's path, what a filter does to a spectrum.

Zhuo et al., "Towards a Unified Theoretical Understanding of Non-contrastive Learning via Rank
Differential Mechanism", ICLR 2023. Letters are the paper's. What the printed text leaves out or
gets wrong is said where it matters: see :func:`linear_setting`, :func:`filtered_eigenvalues`,
:func:`positive_correlation`, :func:`rank_difference`, :func:`kind` and :func:`updated_eigenvalues`.
"""

from rdm_solo.spectra.measures import ideal_filter
from rdm_solo.theory.filtering import (
    equivalent_filter,
    filtered_eigenvalues,
    is_low_pass,
    kind,
    rank_difference,
)
from rdm_solo.theory.positive_pairs import (
    conditional_covariance,
    mean_correlation,
    positive_correlation,
)
from rdm_solo.theory.predictor import (
    LinearSetting,
    alignment_loss,
    linear_setting,
    optimal_predictor,
)
from rdm_solo.theory.update import (
    Conditions,
    conditions,
    update_gain,
    updated_correlation,
    updated_eigenvalues,
)

__all__ = [
    "Conditions",
    "LinearSetting",
    "alignment_loss",
    "conditional_covariance",
    "conditions",
    "equivalent_filter",
    "filtered_eigenvalues",
    "ideal_filter",
    "is_low_pass",
    "kind",
    "linear_setting",
    "mean_correlation",
    "optimal_predictor",
    "positive_correlation",
    "rank_difference",
    "update_gain",
    "updated_correlation",
    "updated_eigenvalues",
]
