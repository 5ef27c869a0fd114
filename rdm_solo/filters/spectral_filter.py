"""Spectral filters: fixed functions of a batch's singular values in place of a predictor.

A batch ``x = U diag(sigma) V^T`` leaves a filter as ``U diag(sigma * g(sigma)) V^T``. On the online
branch that is ``x W`` with ``W = V g(Sigma) V^T`` held constant (Algorithm 2 of Zhuo et al.,
ICLR 2023); on the target branch nothing carries a gradient.
"""

from __future__ import annotations

import contextlib
import logging
import math

import torch
from torch import Tensor, nn

from rdm_solo.distributed import rank
from rdm_solo.filters.decomposition import _Decomposition, _in_range
from rdm_solo.filters.functions import Function, _label, get
from rdm_solo.filters.schedules import Schedule, as_schedule

__all__ = ["SpectralFilter"]

log = logging.getLogger(__name__)


class SpectralFilter(nn.Module):
    r"""A fixed spectral filter, :math:`x = U \Sigma V^\top \mapsto U\,\Sigma g(\Sigma) V^\top`.

    ``branch="online"`` is the paper's predictor: ``x W`` with ``W = V g(Sigma) V^T`` of the batch
    and no gradient through ``W``. ``branch="target"`` gives the same values without any gradient,
    so that ``p`` in ``h(sigma) = sigma^p`` leaves the spectrum ``sigma^(1 + p)``.

    The batch is the *global* one: on several processes each holds an equal share of its rows, and
    outputs and gradients equal those of one process. Directions whose singular value is rounding
    noise, ``sigma <= relative_cut(...) * sigma_max``, carry no signal and are mapped to zero, as
    are rows that hold NaN or infinity; both are said once in the log. Work is done in float64
    outside autocast and returned in the input's dtype. Where the result would leave the range in
    which losses can normalise its rows, it is multiplied by one constant that they divide out
    again. In ``eval()`` the input is returned as it is: nothing is decomposed.

    Args:
        branch: ``"online"`` or ``"target"``.
        function: a registered name or any callable on the tensor of singular values.
        p: the exponent where the function takes one; a number or a schedule over epochs.

    Shapes: ``(N, k) -> (N, k)``.

    >>> x = torch.diag(torch.tensor([4.0, 1.0]))
    >>> SpectralFilter("target", "pow", p=-0.5)(x)
    tensor([[2., 0.],
            [0., 1.]])
    """

    def __init__(
        self,
        branch: str = "online",
        function: str | Function = "identity",
        p: float | Schedule | dict[str, object] | None = None,
    ) -> None:
        super().__init__()
        if branch not in ("online", "target"):
            raise ValueError(f"branch must be 'online' or 'target', got {branch!r}.")
        self.branch = branch
        self.function = function
        self.schedule = None if p is None else as_schedule(p)
        self.set_epoch(0)
        self._told: set[str] = set()

    @property
    def p(self) -> float | None:
        """The exponent in force."""
        return self._p

    def set_epoch(self, epoch: int) -> None:
        """Move the exponent to its value in that epoch."""
        self._p = None if self.schedule is None else self.schedule(epoch)
        self._gain = get(self.function, self._p)

    def extra_repr(self) -> str:
        exponent = "" if self._p is None else f", p={self._p:g}"
        return f"{self.branch}, {_label(self.function)}{exponent}"

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 2 or not x.is_floating_point() or 0 in x.shape:
            raise ValueError(
                "a spectral filter takes a non-empty floating-point batch of shape (N, k), "
                f"got {tuple(x.shape)} of {x.dtype}."
            )
        if not self.training:
            return x
        if self.branch == "online" and x.requires_grad and torch.is_grad_enabled():
            result: Tensor = _OnlineFilter.apply(x, self)
            return result
        with torch.no_grad(), _full_precision(x):
            return self._decompose(x).filtered()

    def _decompose(self, x: Tensor) -> _Decomposition:
        parts = _Decomposition(x)
        peak = parts.weigh(self._gain)
        if not math.isfinite(peak):
            raise ValueError(
                f"the filter function {_label(self.function)!r} returned NaN or infinity for a "
                "positive singular value; it must be finite on the whole spectrum."
            )
        parts.gain = _in_range(parts.gain, peak, x.dtype)
        self._report(parts)
        return parts

    def _report(self, parts: _Decomposition) -> None:
        if parts.broken_rows:
            if parts.broken_rows == parts.n:
                raise FloatingPointError(
                    f"all {parts.n} rows of the batch that reached the {self.branch} filter hold "
                    "NaN or infinity: training has diverged; lower the learning rate, or use bf16 "
                    "in place of fp16."
                )
            self._tell_once(
                "nonfinite",
                f"{parts.broken_rows} of {parts.n} rows reached the {self.branch} filter with NaN "
                "or infinity; such rows are mapped to zero and get no gradient.",
            )
        rank, kept = min(parts.n, parts.k), len(parts.sigma)
        # A batch that was centred by batch normalisation has one empty direction by construction.
        if kept < rank - 1 or kept == 0:
            self._tell_once(
                "collapsed",
                f"the batch that reached the {self.branch} filter has {kept} of {rank} directions "
                "above rounding noise (collapsed or repeated features?); the others are mapped "
                "to zero.",
            )

    def _tell_once(self, what: str, message: str) -> None:
        if what not in self._told:
            self._told.add(what)
            if rank() == 0:
                log.warning(message)


class _OnlineFilter(torch.autograd.Function):
    """``x -> x W`` with ``W = V g V^T`` constant: the gradient is ``G W``, from the factors."""

    @staticmethod
    def forward(ctx, x: Tensor, module: SpectralFilter) -> Tensor:  # type: ignore[no-untyped-def]
        with _full_precision(x):
            parts = module._decompose(x)
            # Values come from float64 products, or from unit vectors computed there; float32 is
            # enough for what multiplies the gradient.
            work = torch.float64 if x.dtype == torch.float64 else torch.float32
            if parts.dual:
                vt = parts.right_vectors().to(work)
                ctx.save_for_backward(vt, parts.gain.to(work), parts.negligible)
                return parts.finish(parts.left_part().to(work) @ vt)
            w = parts.operator()
            ctx.save_for_backward(w.to(work), None, parts.negligible)
            return parts.finish(parts.local @ w)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
        matrix, gain, negligible = ctx.saved_tensors
        if negligible is not None:
            grad = grad.masked_fill(negligible, 0.0)
        with _full_precision(grad):
            wide = grad.to(matrix.dtype)
            back = wide @ matrix if gain is None else (wide @ matrix.mT).mul_(gain) @ matrix
        return back.to(grad.dtype), None


def _full_precision(x: Tensor) -> contextlib.AbstractContextManager[object]:
    """Autocast off for the device, at no cost where it is off already."""
    if torch.is_autocast_enabled(x.device.type):
        return torch.autocast(x.device.type, enabled=False)
    return contextlib.nullcontext()
