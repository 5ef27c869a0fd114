"""The module that applies a spectral filter to each batch."""

import contextlib
import logging
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from rdm_solo.distributed import rank
from rdm_solo.filters.application import (
    Operator,
    filter_by,
    filter_gradient,
    filter_online,
    filter_target,
)
from rdm_solo.filters.batch import Batch, gather, has_float64
from rdm_solo.filters.decomposition import spectrum_of
from rdm_solo.filters.functions import Function, get, label
from rdm_solo.filters.gain_values import evaluate, not_finite, rescale
from rdm_solo.filters.iterations import ROOTS, power
from rdm_solo.filters.schedules import Schedule, as_schedule
from rdm_solo.messages import UserError

log = logging.getLogger(__name__)


FALLBACK = (
    "solver=iterative was not accurate enough for a batch (directions at rounding noise, collapsed "
    "or repeated rows?), which eigh has decomposed instead: such batches are as exact, and slower."
)


class _Counts(NamedTuple):
    """A batch ``(n, k)`` and what the device counted in it, as :meth:`SpectralFilter._say` takes
    it."""

    n: int
    k: int
    counts: Tensor


class SpectralFilter(nn.Module):
    r"""A fixed spectral filter, :math:`x = U \Sigma V^\top \mapsto U\,\Sigma g(\Sigma) V^\top`.

    ``branch="online"`` is the paper's predictor: ``x W`` with ``W = V g(Sigma) V^T`` of the batch
    and no gradient through ``W``. ``branch="target"`` gives the same values without any gradient,
    so that ``p`` in ``h(sigma) = sigma^p`` leaves the spectrum ``sigma^(1 + p)``.

    The batch is the *global* one: on several processes each holds an equal share of its rows, and
    outputs and gradients equal those of one process. Directions whose singular value is rounding
    noise, ``sigma <= relative_cut(...) * sigma_max``, carry no signal and are mapped to zero, as
    are rows that hold NaN or infinity, or are zero to rounding; the log says each once. Work is
    done in float64 outside autocast and returned in the input's dtype, whatever
    ``torch.set_float32_matmul_precision`` says. Where the result would leave the range in which
    losses can normalise its rows, it is multiplied by one constant that they divide out again. In
    ``eval()`` the input is returned as it is: nothing is decomposed.

    A call waits for the device once, in the decomposition. What the log has to say is read at every
    ``EVERY``-th call, and where :meth:`report` is called, as at an epoch's end; on a CPU, where
    nothing waits, in every call.

    Args:
        branch: ``"online"`` or ``"target"``.
        function: a registered name, ``"MODULE.FUNCTION"``, or any callable on the tensor of
            singular values; :func:`rdm_solo.filters.get` finds and tries it.
        p: the exponent where the function takes one; a number or a schedule over epochs.
        solver: ``"eigh"``, or ``"iterative"`` for sigma^-0.5 and sigma^-1 on the target branch: by
            about 50 matrix products in place of the decomposition. What they give is checked in
            each call, and a batch that fails goes to ``eigh``. float64 batches are decomposed.

    Shapes: ``(N, k) -> (N, k)``.

    >>> x = torch.diag(torch.tensor([4.0, 1.0]))
    >>> SpectralFilter("target", "pow", p=-0.5)(x)
    tensor([[2., 0.],
            [0., 1.]])
    """

    EVERY = 50

    def __init__(
        self,
        branch: str = "online",
        function: str | Function = "identity",
        p: float | Schedule | dict[str, object] | None = None,
        solver: str = "eigh",
    ) -> None:
        super().__init__()
        if branch not in ("online", "target"):
            raise UserError(f"branch must be 'online' or 'target', got {branch!r}.")
        self.branch = branch
        self.function = function
        self.schedule = None if p is None else as_schedule(p)
        self.solver = solver
        if solver not in ("eigh", "iterative"):
            raise UserError(f"the solver must be 'eigh' or 'iterative', got {solver!r}.")
        if solver == "iterative":
            self._check_iterative()
        self._unread: list[_Counts] = []
        self._dropped_rows = 0
        self._logged: set[str] = set()
        self.set_epoch(0)

    def _check_iterative(self) -> None:
        """Refuse what matrix products cannot do."""
        p = self.schedule
        constant = p.start if p is not None and p.kind == "constant" else None
        if self.branch != "target" or self.function != "pow" or constant not in ROOTS:
            exponents = " or ".join(f"p={root:g}" for root in sorted(ROOTS))
            raise UserError(
                f"solver=iterative is for pow of the target branch with {exponents}, got "
                f"branch={self.branch}, function={label(self.function)}, "
                f"p={p if constant is None else f'{constant:g}'}; leave the solver out."
            )

    @property
    def fell_back(self) -> bool:
        """Whether ``solver=iterative`` has left a batch to ``eigh``."""
        return "fallback" in self._logged

    @property
    def dropped_rows(self) -> int:
        """Rows of the last batch, of all processes, that were mapped to zero; the host waits."""
        return int(self._unread[-1].counts[1]) if self._unread else self._dropped_rows

    def set_epoch(self, epoch: int) -> None:
        """Move the exponent ``p`` to its value in that epoch, after a :meth:`report`."""
        self.report()
        self.p = None if self.schedule is None else self.schedule(epoch)
        self._gain = get(self.function, self.p)

    def extra_repr(self) -> str:
        exponent = "" if self.p is None else f", p={self.p:g}"
        return f"{self.branch}, {label(self.function)}{exponent}"

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 2 or not x.is_floating_point() or 0 in x.shape:
            raise UserError(
                "a spectral filter takes a non-empty floating-point batch of shape (N, k), "
                f"got {tuple(x.shape)} of {x.dtype}."
            )
        if not self.training:
            return x
        traced = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        if traced or torch.compiler.is_exporting():
            raise UserError(
                "a spectral filter in train() cannot be exported or traced: it depends on the "
                "singular values of each batch. Call eval() first; it then returns its input."
            )
        if not torch.compiler.is_compiling():
            return self._filtered(x)
        plain: Function = torch.compiler.disable(  # type: ignore[no-untyped-call]
            SpectralFilter._filtered, reason="a filter is not compiled"
        )
        return plain(self, x)

    def _filtered(self, x: Tensor) -> Tensor:
        if not has_float64(x.device):
            return self._filtered(x.cpu()).to(x.device)
        learns = self.branch == "online" and _has_derivative(x)
        # detach() drops forward-mode tangents, which no_grad() would let pass.
        with torch.no_grad(), _one_batch_at_a_time():
            batch, gram = gather(x.detach())
            iterative = self.solver == "iterative" and x.dtype != torch.float64
            if iterative and self.p is not None and gram is not None:
                found = power(batch, gram, self.p)
                if bool(found.exact):  # where the host waits
                    finite = gram.new_ones(1)  # in the gains' place: the check has looked at them
                    self._count(batch, found.directions, finite)
                    return filter_by(batch, found.matrix)
                self._log_once("fallback", FALLBACK)
            spectrum = spectrum_of(batch, gram)
            gain = evaluate(spectrum, self._gain)
            self._count(spectrum, spectrum.directions, gain)
            gain = rescale(spectrum, gain)
            if not learns:
                return filter_target(spectrum, gain)
            value, operator = filter_online(spectrum, gain)
        result: Tensor = _TimesConstant.apply(x, [value], *operator)
        return result

    def _count(self, batch: Batch, directions: Tensor, gain: Tensor) -> None:
        """Keep what there may be to say of a batch; on a CPU, where it can be read, say it."""
        rows = (batch.broken_rows, batch.negligible_rows)
        steepest = torch.linalg.vector_norm(gain, math.inf) if len(gain) else gain.sum()
        counts = (*rows, directions, steepest)
        if gain.device.type == "cpu":
            self._say(batch.n, batch.k, *(count.item() for count in counts))
            return
        # A tensor of its own, into which vmap cannot write: it fails here.
        own = torch.empty(len(counts), dtype=torch.float64, device=gain.device)
        self._unread.append(_Counts(batch.n, batch.k, own.copy_(torch.stack(counts))))
        if len(self._unread) == self.EVERY:
            self.report()

    def report(self) -> None:
        """Say what the batches had that nobody looked at yet; the host waits for the device.

        Raises ``FloatingPointError`` for a batch of nothing but NaN and infinity, and
        ``ValueError`` for a function that returned such a number.
        """
        batches = list(self._unread)
        self._unread.clear()
        if batches:
            counts = torch.stack([batch.counts for batch in batches]).tolist()
            for batch, numbers in zip(batches, counts):
                self._say(batch.n, batch.k, *numbers)

    def _say(
        self, n: int, k: int, broken: float, negligible: float, kept: float, steepest: float
    ) -> None:
        """Of a batch: rows with NaN or infinity, rows without a direction, directions above noise,
        and the largest gain."""
        broken, negligible, kept, most = int(broken), int(negligible), int(kept), min(n, k)
        self._dropped_rows = negligible
        if broken == n:
            raise FloatingPointError(
                f"all {n} rows of the batch that reached the {self.branch} filter "
                "hold NaN or infinity; lower the learning rate, or use bf16 in place of fp16."
            )
        if not math.isfinite(steepest):
            raise UserError(not_finite(self._gain))
        if broken:
            self._log_once(
                "nonfinite",
                f"{broken} of {n} rows reached the {self.branch} filter "
                "with NaN or infinity; such rows are mapped to zero and get no gradient.",
            )
        if broken < negligible < n:
            self._log_once(
                "short",
                f"{negligible - broken} of {n} rows that reached the {self.branch} filter are zero "
                "to rounding beside the others; such rows are mapped to zero and get no gradient.",
            )
        # A batch that was centred by batch normalisation has one empty direction by construction.
        if kept < most - 1 or kept == 0:
            self._log_once(
                "collapsed",
                f"the batch that reached the {self.branch} filter has {kept} of {most} directions "
                "above rounding noise (collapsed or repeated features?); the others are mapped "
                "to zero.",
            )

    def _log_once(self, what: str, message: str) -> None:
        if what not in self._logged:
            self._logged.add(what)
            if rank() == 0:
                log.warning(message)


@contextlib.contextmanager
def _one_batch_at_a_time() -> Iterator[None]:
    """Refuse ``torch.func.vmap`` in a sentence."""
    try:
        yield
    except RuntimeError as error:
        if "vmap" not in str(error):
            raise
        raise UserError(
            "a spectral filter takes one batch at a time, and its singular values decide what "
            "is done: torch.func.vmap over batches is not possible; call it for each of them."
        ) from error


def _has_derivative(x: Tensor) -> bool:
    return bool(
        (x.requires_grad and torch.is_grad_enabled())
        or forward_ad.unpack_dual(x).tangent is not None  # type: ignore[no-untyped-call]
    )


class _TimesConstant(torch.autograd.Function):
    """A value that is ``x W``, with ``W = V g V^T`` constant: gradients are ``G W``."""

    generate_vmap_rule = True  # of derivatives, for torch.func.jacfwd

    @staticmethod
    def forward(x: Tensor, value: list[Tensor], *operator: Tensor | None) -> Tensor:
        return value[0]  # in a list: autograd takes an output that is an input for a view

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(*inputs[2:])
        ctx.save_for_forward(*inputs[2:])

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
        operator = Operator(*ctx.saved_tensors)
        return filter_gradient(grad, operator), None, None, None, None

    @staticmethod
    def jvp(ctx, tangent: Tensor, *_: None) -> Tensor:  # type: ignore[no-untyped-def]
        return filter_gradient(tangent, Operator(*ctx.saved_tensors))
