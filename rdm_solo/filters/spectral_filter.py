"""The module that applies a spectral filter to each batch."""

import logging
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from rdm_solo.filters.application import (
    Operator,
    filter_by_root,
    filter_gradient,
    filter_online,
    filter_target,
    gains,
    rescale,
)
from rdm_solo.filters.batch import Batch, gather, relative_cut, spectra
from rdm_solo.filters.functions import Function, get, label
from rdm_solo.filters.inverse_root import inverse_root, read_later
from rdm_solo.filters.schedules import Schedule, as_schedule
from rdm_solo.ground.devices import has_float64
from rdm_solo.ground.distributed import rank
from rdm_solo.ground.errors import UserError
from rdm_solo.ground.values import check_choice, check_integer, check_number

log = logging.getLogger(__name__)

# Exponents whose filter is an inverse root of the Gram matrix, and that root's order.
ORDERS: dict[float | None, int] = {-1.0: 2, -0.5: 4}


class SpectralFilter(nn.Module):
    r"""A fixed spectral filter, :math:`x = U \Sigma V^\top \mapsto U\,\Sigma g(\Sigma) V^\top`.

    ``branch="online"`` is the paper's predictor: ``x W``, where ``W = V g(Sigma) V^T`` is computed
    from the batch and has no gradient. ``branch="target"`` returns the same values without any
    gradient, unless ``has_gradient`` is set to true. On the target, sigma^p turns the singular
    values into ``sigma^(1 + p)``.

    The batch is the *global* batch: all processes must pass the same number of rows, and outputs
    and gradients equal those of a single process. Directions of rounding noise (``sigma <=
    relative_cut(...) * sigma_max``), rows with NaN or infinity and rows that are zero up to
    rounding are mapped to zero; each of the three is logged once. In ``eval()`` the input is
    returned unchanged.

    The decomposition, W and the target's rows are computed in float64. The online branch multiplies
    rows (if N < k) and gradients by W in float32, or in float64 if the input is float64 or torch's
    settings allow TF32 or bfloat16 products. Autocast has no effect, and the result has the input's
    dtype. For float32 and sigma^p, rows scaled to unit length have an error of at most 3.1e-7 + 16
    eps64 (sigma_max / sigma_min)^max(2, -p); the largest factor found was 7.3. If rows would be too
    large or small for a loss to normalise, all are multiplied by one constant, which cancels in the
    normalisation.

    A stack of batches ``(V, N, k)``, such as the views of the same images, is filtered batch by
    batch in one call. Up to rounding, the result is that of V calls.

    A call waits for the device once: for the decomposition or, with products, for their check. A
    function that is not elementwise adds one wait. Counts for warnings are read in every call on a
    CPU, and otherwise in every ``EVERY``-th call and in :meth:`report`.

    Args:
        branch: ``"online"`` or ``"target"``.
        function: a registered name, ``"MODULE.FUNCTION"``, or any callable on the tensor of
            singular values; see :func:`rdm_solo.filters.get`.
        p: the exponent if the function takes one: a number or a schedule over epochs.
        momentum: weight of the previous batches in a running mean of ``X^T X / N``, which then
            defines the filter; 0 uses the batch alone. Each call is one update, so SimSiam and BYOL
            make two in a step.
        solver: ``"eigh"`` decomposes the Gram matrix. ``"products"`` computes sigma^-1 and
            sigma^-0.5 of float32 rows on a branch without gradient by matrix products, within the
            bound above, and decomposes batches for which they are inexact. ``"auto"`` uses products
            on CUDA devices, where they are faster.
        check_delay: number of calls after which the check of products is read. 0: each call waits
            for its own. A batch that fails a delayed check is mapped to zero. The first batch of an
            epoch is checked at once, and after a failed check the rest of the epoch is decomposed.
        parameters: the function's other parameters, such as ``keep=8``.

    Shapes: ``(N, k) -> (N, k)`` or ``(V, N, k) -> (V, N, k)``.

    >>> x = torch.diag(torch.tensor([4.0, 1.0]))
    >>> SpectralFilter("target", "pow", p=-0.5)(x)
    tensor([[2., 0.],
            [0., 1.]])
    """

    EVERY = 50
    takes_stacks = True  # a call with (V, N, k) is V calls, also for the spectra

    running: Tensor

    def __init__(
        self,
        branch: str = "online",
        function: str | Function = "identity",
        p: float | Schedule | dict[str, object] | None = None,
        momentum: float = 0.0,
        solver: str = "auto",
        check_delay: int = 0,
        **parameters: Any,
    ) -> None:
        super().__init__()
        self.branch = check_choice("branch", branch, ("online", "target"))
        self.function = function
        self.values = parameters
        self.has_gradient = branch == "online"
        self.momentum = check_number("momentum", momentum, 0, 1)
        self.solver = check_choice("solver", solver, ("auto", "eigh", "products"))
        self.check_delay = check_integer("check_delay", check_delay, 0)
        if momentum:
            self.register_buffer("running", torch.empty(0, 0, dtype=torch.float64))
        self.schedule = None if p is None else as_schedule(p)
        self._pending: list[tuple[int, int, Tensor]] = []  # n, k, counts on the device
        self._logged: set[str] = set()
        self._checks: list[tuple[int, Callable[[], list[bool]]]] = []  # n, flags of products
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Call :meth:`report` and set the exponent ``p`` to its value in that epoch."""
        self.report()
        self._needs_eigh = False
        self._is_checked = False
        self.p = None if self.schedule is None else self.schedule(epoch)
        self._gain = get(self.function, self.p, **self.values)

    def extra_repr(self) -> str:
        values = dict(self.values)
        if self.p is not None:
            values["p"] = f"{self.p:g}"
        if self.momentum:
            values["momentum"] = self.momentum
        parameters = [f"{key}={value}" for key, value in values.items()]
        return ", ".join([self.branch, label(self.function), *parameters])

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim not in (2, 3):
            raise UserError(
                "a spectral filter takes a batch of shape (N, k) or a stack of batches (V, N, k), "
                f"got {tuple(x.shape)}."
            )
        if not self.training:
            return x
        if not torch.compiler.is_compiling():
            return self._filtered(x)
        # As a decorator, `disable` would load the compiler, which takes seconds.
        uncompiled: Function = torch.compiler.disable(  # type: ignore[no-untyped-call]
            SpectralFilter._filtered, reason="a filter is not compiled"
        )
        return uncompiled(self, x)

    def _filtered(self, x: Tensor) -> Tensor:
        if not has_float64(x.device):
            return self._filtered(x.cpu()).to(x.device)
        if x.ndim == 2:
            return self._filter_views([x])[0]
        return torch.stack(self._filter_views(list(x)))

    def _filter_views(self, views: list[Tensor]) -> list[Tensor]:
        has_derivative = self.has_gradient and any(map(_has_derivative, views))
        # detach() also drops forward-mode tangents, which no_grad() keeps.
        with torch.no_grad():
            batches = [self._gather(x.detach()) for x in views]
            filtered = self._filter_by_products(batches)
            if filtered is not None:
                return filtered
            values = []
            operators = []
            for spectrum in spectra(batches, drop_noise=not self._gain.elementwise):
                gain = gains(spectrum, self._gain)
                counts = [
                    spectrum.broken_rows,
                    spectrum.negligible_rows,
                    spectrum.directions,
                    torch.linalg.vector_norm(gain, 1),
                ]
                self._pending.append((spectrum.n, spectrum.k, torch.stack(counts)))
                gain = rescale(spectrum, gain)
                if has_derivative:
                    value, operator = filter_online(spectrum, gain)  # W is used in backward
                    operators.append(operator)
                else:
                    value = filter_target(spectrum, gain)  # U diag(sigma g) V^T
                values.append(value)
            # Reading the counts synchronises with the device, but not on a CPU.
            if views[0].device.type == "cpu" or len(self._pending) >= self.EVERY:
                self.report()
        if not has_derivative:
            return values
        return [
            _TimesConstant.apply(x, [value], *operator)
            for x, value, operator in zip(views, values, operators)
        ]

    def _gather(self, x: Tensor) -> tuple[Batch, Tensor | None]:
        """Return the batch and its Gram matrix, or the running mean scaled to the batch's rows."""
        if not self.momentum:
            return gather(x)
        batch, gram = gather(x, running=True)
        assert gram is not None
        finite_rows = batch.n - batch.broken_rows
        C = gram / finite_rows.clamp_min(1)
        if not self.running.numel():
            self.running = C
        # double(), because `.float()` on the model casts its buffers.
        self.running = self.running.double().lerp(C, 1 - self.momentum)
        return batch, self.running * batch.n

    def _filter_by_products(
        self, batches: list[tuple[Batch, Tensor | None]]
    ) -> list[Tensor] | None:
        """Return the filtered rows for sigma^-1 and sigma^-0.5, or None if they need ``eigh``.

        Results are checked on the device. With ``check_delay``, the host does not wait for a check,
        but reads it after that many calls, and a batch that fails is mapped to zero. The first
        batch of an epoch is always checked at once.
        """
        batch, _ = batches[0]
        order = ORDERS.get(self.p)
        is_root = self.function == "pow" and batch.dtype == torch.float32
        solver = self.solver
        if solver == "auto":
            solver = "products" if batch.rows.device.type == "cuda" else "eigh"
        if order is None or not is_root or solver == "eigh" or self._needs_eigh:
            return None
        # A reentrant checkpoint calls a filter without and then with gradients, so a branch with
        # gradients always has one solver. A square batch has a null direction after batch norm that
        # inverse_root does not know, so it would always fail the check.
        if self.has_gradient or batch.n == batch.k:
            return None
        cut = relative_cut(batch.dtype, batch.n, batch.k)
        grams = torch.stack([gram for _, gram in batches if gram is not None])
        root, usable = inverse_root(grams, order, cut, centred=batch.dual)
        negligible_rows = torch.stack([batch.negligible_rows for batch, _ in batches])
        usable = usable & (negligible_rows == 0)
        has_no_row = torch.stack([batch.broken_rows for batch, _ in batches]) == batch.n
        root = root.where(usable[:, None, None], 0.0)
        root = root.masked_fill(has_no_row[:, None, None], torch.nan)
        flags = torch.stack([usable.all(), has_no_row.any()])
        self._checks.append((batch.n, read_later(flags)))
        while len(self._checks) > (self.check_delay if self._is_checked else 0):
            if not self._read_check():
                return None
        return [filter_by_root(batch, matrix) for (batch, _), matrix in zip(batches, root)]

    def _read_check(self) -> bool:
        """Return the oldest check; if it failed, all batches of this epoch are decomposed."""
        n, flags = self._checks.pop(0)
        is_usable, has_no_row = flags()
        if is_usable:
            self._is_checked = True
            return True
        self._needs_eigh = self.check_delay > 0
        if self._is_checked and self.check_delay:
            if has_no_row:
                raise self._no_finite_row(n)
            problem = "cannot be filtered by products"
            self._log_once(
                problem,
                f"a batch that reached the {self.branch} filter {problem}, because it is nearly "
                "singular or has rows of zeros or NaN. It was mapped to zero, and later batches of "
                "its epoch are decomposed (filter.solver).",
            )
        return False

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a copy, without checks that are on their way to the host."""
        return {**self.__dict__, "_checks": []}

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        saved = state_dict.get(f"{prefix}running")
        if self.momentum and saved is not None:
            # torch copies values only into a buffer of the same shape.
            self.running = torch.empty_like(saved, device=self.running.device)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def report(self) -> None:
        """Log warnings about the batches since the last report. This synchronises with the device.

        Raise ``FloatingPointError`` if a batch has no finite row, and :class:`UserError` if the
        function returned NaN or infinity.
        """
        while self._checks:
            self._read_check()
        pending, self._pending = self._pending, []
        if not pending:
            return
        # One copy for all batches.
        rows = torch.stack([counts for _, _, counts in pending]).tolist()
        for (n, k, _), (broken, negligible, kept, total_gain) in zip(pending, rows):
            if broken == n:
                raise self._no_finite_row(n)
            if not math.isfinite(total_gain):
                raise UserError(
                    f"the filter function {self._gain.name!r} returned NaN or infinity for a "
                    "positive singular value; it must be finite on the whole spectrum."
                )
            if broken:
                self._warn_once(broken, f"{n} rows", "hold NaN or infinity")
            if broken < negligible < n:
                self._warn_once(negligible - broken, f"{n} rows", "are zero up to rounding")
            # Batch normalisation leaves one empty direction if N <= k.
            most = min(n, k)
            if kept < most - 1 or kept == 0:
                problem = "are rounding noise (collapsed or repeated features?)"
                self._warn_once(most - kept, f"{most} directions", problem)

    def _no_finite_row(self, n: int) -> FloatingPointError:
        return FloatingPointError(
            f"all {n} rows of the batch that reached the {self.branch} filter "
            "hold NaN or infinity; lower the learning rate, or use bf16 instead of fp16."
        )

    def _warn_once(self, count: float, total: str, problem: str) -> None:
        self._log_once(
            problem,
            f"{count:.0f} of {total} that reached the {self.branch} filter {problem}; they are "
            "mapped to zero and get no gradient.",
        )

    def _log_once(self, problem: str, message: str) -> None:
        if problem in self._logged:
            return
        self._logged.add(problem)
        if rank() == 0:
            log.warning(message)


def _has_derivative(x: Tensor) -> bool:
    tangent = forward_ad.unpack_dual(x).tangent  # type: ignore[no-untyped-call]
    return (x.requires_grad and torch.is_grad_enabled()) or tangent is not None


class _TimesConstant(torch.autograd.Function):
    """Return the precomputed value of ``x W``, with the gradient ``G W`` of a constant W."""

    generate_vmap_rule = True  # for the derivatives of torch.func.jacfwd

    @staticmethod
    def forward(x: Tensor, value: list[Tensor], *operator: Tensor | None) -> Tensor:
        return value[0]  # value is a list, because autograd treats a returned input as a view

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
