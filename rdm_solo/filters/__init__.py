"""Spectral filters: fixed functions of a batch's singular values in place of a predictor.

A batch ``x = U diag(sigma) V^T`` leaves a filter as ``U diag(sigma * g(sigma)) V^T``. On the online
branch that is ``x W`` with ``W = V g(Sigma) V^T`` held constant (Algorithm 2 of Zhuo et al.,
ICLR 2023); on the target branch nothing carries a gradient.
"""

from rdm_solo.filters.application import Operator, filter_gradient, filter_online, filter_target
from rdm_solo.filters.batch import relative_cut
from rdm_solo.filters.decomposition import Spectrum, decompose
from rdm_solo.filters.functions import get, names, register, takes_p
from rdm_solo.filters.gain_values import gains
from rdm_solo.filters.schedules import Schedule, as_schedule
from rdm_solo.filters.spectral_filter import SpectralFilter

__all__ = [
    "Operator",
    "Schedule",
    "SpectralFilter",
    "Spectrum",
    "as_schedule",
    "decompose",
    "filter_gradient",
    "filter_online",
    "filter_target",
    "gains",
    "get",
    "names",
    "register",
    "relative_cut",
    "takes_p",
]
