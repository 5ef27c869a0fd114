"""The module that applies a spectral filter to each batch."""

import logging

import torch
from torch import Tensor, nn

from rdm_solo.distributed import rank
from rdm_solo.filters import decomposition
from rdm_solo.filters.functions import Function, get, label
from rdm_solo.filters.schedules import Schedule, as_schedule

log = logging.getLogger(__name__)


class SpectralFilter(nn.Module):
    r"""A fixed spectral filter, :math:`x = U \Sigma V^\top \mapsto U\,\Sigma g(\Sigma) V^\top`.

    ``branch="online"`` is the paper's predictor: ``x W`` with ``W = V g(Sigma) V^T`` of the batch
    and no gradient through ``W``. ``branch="target"`` gives the same values without any gradient,
    so that ``p`` in ``h(sigma) = sigma^p`` leaves the spectrum ``sigma^(1 + p)``.

    The batch is the *global* one: on several processes each holds an equal share of its rows, and
    outputs and gradients equal those of one process. Directions whose singular value is rounding
    noise, ``sigma <= relative_cut(...) * sigma_max``, carry no signal and are mapped to zero, as
    are rows that hold NaN or infinity; the log says either once. Work is done in float64
    outside autocast and returned in the input's dtype. Where the result would leave the range in
    which losses can normalise its rows, it is multiplied by one constant that they divide out
    again. In ``eval()`` the input is returned as it is: nothing is decomposed.

    Args:
        branch: ``"online"`` or ``"target"``.
        function: a registered name, ``"MODULE.FUNCTION"``, or any callable on the tensor of
            singular values; :func:`rdm_solo.filters.get` finds and tries it.
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
        self._logged: set[str] = set()

    def set_epoch(self, epoch: int) -> None:
        """Move the exponent ``p`` to its value in that epoch."""
        self.p = None if self.schedule is None else self.schedule(epoch)
        self._gain = get(self.function, self.p)

    def extra_repr(self) -> str:
        exponent = "" if self.p is None else f", p={self.p:g}"
        return f"{self.branch}, {label(self.function)}{exponent}"

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
        with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
            return decomposition.filter_target(*self._decomposed(x))

    def _decomposed(self, x: Tensor) -> tuple[decomposition.Spectrum, Tensor]:
        spectrum = decomposition.decompose(x)
        gain = decomposition.gains(spectrum, self._gain)
        if spectrum.broken_rows == spectrum.n:
            raise FloatingPointError(
                f"all {spectrum.n} rows of the batch that reached the {self.branch} filter "
                "hold NaN or infinity; lower the learning rate, or use bf16 in place of fp16."
            )
        if spectrum.broken_rows:
            self._log_once(
                "nonfinite",
                f"{spectrum.broken_rows} of {spectrum.n} rows reached the {self.branch} filter "
                "with NaN or infinity; such rows are mapped to zero and get no gradient.",
            )
        most, kept = min(spectrum.n, spectrum.k), len(spectrum.sigma)
        # A batch that was centred by batch normalisation has one empty direction by construction.
        if kept < most - 1 or kept == 0:
            self._log_once(
                "collapsed",
                f"the batch that reached the {self.branch} filter has {kept} of {most} directions "
                "above rounding noise (collapsed or repeated features?); the others are mapped "
                "to zero.",
            )
        return spectrum, gain

    def _log_once(self, what: str, message: str) -> None:
        if what not in self._logged:
            self._logged.add(what)
            if rank() == 0:
                log.warning(message)


class _OnlineFilter(torch.autograd.Function):
    """``x -> x W`` with ``W = V g V^T`` constant: the gradient is ``G W``."""

    @staticmethod
    def forward(ctx, x: Tensor, module: SpectralFilter) -> Tensor:  # type: ignore[no-untyped-def]
        with torch.autocast(x.device.type, enabled=False):
            out, operator = decomposition.filter_online(*module._decomposed(x))
        ctx.save_for_backward(*operator)
        return out

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
        with torch.autocast(grad.device.type, enabled=False):
            operator = decomposition.Operator(*ctx.saved_tensors)
            return decomposition.filter_gradient(grad, operator), None
