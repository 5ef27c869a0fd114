"""Spectral filters: fixed functions of a batch's singular values that replace a predictor.

A filter maps a batch ``x = U diag(sigma) V^T`` to ``U diag(sigma * g(sigma)) V^T``. On the online
branch this is ``x W`` with ``W = V g(Sigma) V^T``, a constant in the backward pass (Algorithm 2 of
Zhuo et al., ICLR 2023). The target branch has no gradient.
"""

from typing import TYPE_CHECKING

from rdm_solo import import_on_first_use

if TYPE_CHECKING:
    from rdm_solo.filters.batch import decompose, relative_cut
    from rdm_solo.filters.functions import get, names, register, takes_p
    from rdm_solo.filters.schedules import Schedule, as_schedule
    from rdm_solo.filters.spectral_filter import SpectralFilter

__all__ = [
    "Schedule",
    "SpectralFilter",
    "as_schedule",
    "decompose",
    "get",
    "names",
    "register",
    "relative_cut",
    "takes_p",
]

__getattr__ = import_on_first_use(
    __all__,
    "rdm_solo.filters.schedules",
    "rdm_solo.filters.functions",
    "rdm_solo.filters.batch",
    "rdm_solo.filters.spectral_filter",
)
