"""Spectral filters: fixed functions of a batch's singular values in place of a predictor.

A batch ``x = U diag(sigma) V^T`` leaves a filter as ``U diag(sigma * g(sigma)) V^T``. On the online
branch that is ``x W`` with ``W = V g(Sigma) V^T`` held constant (Algorithm 2 of Zhuo et al.,
ICLR 2023); on the target branch nothing carries a gradient.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import math
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rdm_solo.schedules import Schedule, as_schedule, suggest

__all__ = ["SpectralFilter", "get", "names", "register", "relative_cut", "takes_p"]

log = logging.getLogger(__name__)

Function = Callable[..., Tensor]

_FUNCTIONS: dict[str, Function] = {}


# --------------------------------------------------------------------------------------
# The registry
# --------------------------------------------------------------------------------------


def register(name: str) -> Callable[[Function], Function]:
    """Register ``g(sigma)`` or ``g(sigma, p)`` under a name that YAML and Python can use.

    ``sigma`` is a float64 tensor of positive singular values; the result has its shape.

    >>> @register("root")
    ... def root(sigma):
    ...     return sigma.sqrt()
    >>> get("root")(torch.tensor([4.0]))
    tensor([2.])
    """

    def add(function: Function) -> Function:
        known = _FUNCTIONS.get(name)
        if known is not None and known.__qualname__ != function.__qualname__:
            raise ValueError(
                f"the filter function {name!r} is registered already, as "
                f"{known.__module__}.{known.__qualname__}; choose another name."
            )
        _FUNCTIONS[name] = function
        return function

    return add


def names() -> list[str]:
    """The registered names, sorted.

    >>> [name for name in names() if name.startswith("log")]
    ['log', 'log1p', 'log1p_sq']
    """
    return sorted(_FUNCTIONS)


def takes_p(function: str | Function) -> bool:
    """Whether a function has an exponent.

    >>> takes_p("pow"), takes_p("log1p")
    (True, False)
    """
    try:
        return "p" in inspect.signature(_lookup(function)).parameters
    except ValueError:  # builtins such as torch.sqrt show no signature
        return False


def get(name: str | Function, p: float | None = None) -> Callable[[Tensor], Tensor]:
    """The function ``sigma -> g(sigma)`` of that name, its exponent bound.

    >>> get("pow", p=-0.5)(torch.tensor([4.0]))
    tensor([0.5000])
    """
    function = _lookup(name)
    if takes_p(function):
        if p is None:
            raise ValueError(f"the filter function {_label(name)!r} needs an exponent p, got none.")
        return functools.partial(function, p=as_schedule(p)(0))
    if p is not None:
        raise ValueError(
            f"p is an exponent and the filter function {_label(name)!r} has none, got p={p}; "
            "leave p out or choose 'pow'."
        )
    return function


def _lookup(name: str | Function) -> Function:
    if callable(name):
        return name
    if name not in _FUNCTIONS:
        raise ValueError(
            f"there is no filter function {name!r}{suggest(name, names()) or '.'} "
            f"Registered are {', '.join(names())}; rdm_solo.filters.register adds one."
        )
    return _FUNCTIONS[name]


def _label(name: str | Function) -> str:
    return name if isinstance(name, str) else getattr(name, "__name__", repr(name))


@register("identity")
def identity(sigma: Tensor) -> Tensor:
    """g(sigma) = 1: no filter, the symmetric baseline."""
    return torch.ones_like(sigma)


@register("pow")
def power(sigma: Tensor, p: float) -> Tensor:
    """g(sigma) = sigma^p: low-pass for p > 0 (DirectPred at p = 1), high-pass for p < 0."""
    return sigma.pow(p)


@register("log")
def log_(sigma: Tensor) -> Tensor:
    """g(sigma) = log(sigma), negative below sigma = 1; sigma grows with the batch's root."""
    return sigma.log()


@register("log1p")
def log1p(sigma: Tensor) -> Tensor:
    """g(sigma) = log(1 + sigma)."""
    return sigma.log1p()


@register("log1p_sq")
def log1p_sq(sigma: Tensor) -> Tensor:
    """g(sigma) = log(1 + sigma^2)."""
    return sigma.square().log1p()


# --------------------------------------------------------------------------------------
# The filter
# --------------------------------------------------------------------------------------


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
            if _world_size() == 1 or dist.get_rank() == 0:
                log.warning(message)


def relative_cut(dtype: torch.dtype, n: int, k: int) -> float:
    """The share of the largest singular value below which a direction is rounding noise.

    ``eps * sqrt(max(n, k))`` for float32 and float64: above the null direction that a batch norm
    leaves (1 to 12 eps), below the signal of steep spectra. float16 and bfloat16 features are
    rounded themselves, which lifts the null direction to at most 0.29 eps (of the half type), so
    the cut lies at ``eps / 2``. float64 rows that several processes do not gather (more rows than
    columns) are cut as float32 is.

    >>> f"{relative_cut(torch.float32, 256, 2048):.1e}"
    '5.4e-06'
    """
    eps = torch.finfo(dtype).eps
    if dtype in (torch.float16, torch.bfloat16):
        return eps / 2
    return eps * math.sqrt(max(n, k))


def _world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


class _Decomposition:
    """The spectrum of a global batch and what a filter makes of this process's rows.

    With more directions than rows it works on the n x n Gram matrix, otherwise on the
    k x k one; float64 either way, because a Gram matrix squares the condition number. float64
    input keeps its digits through an SVD. The host reads a few numbers off the device, around a
    decomposition that waits for the device itself.
    """

    sigma: Tensor  # the singular values above the cut, ascending
    vectors: Tensor  # their vectors of the smaller side, as columns
    gain: Tensor  # g(sigma)
    negligible: Tensor | None = None

    def __init__(self, x: Tensor) -> None:
        self.dtype = x.dtype
        world = _world_size()
        self.n, self.k = len(x) * world, x.shape[1]
        self.dual = self.n < self.k
        # 2-byte features cross the wire as they are: everything is widened on arrival.
        rows, start = _gather(x) if self.dual and world > 1 else (x, 0)
        self.local_rows = slice(start, start + len(x))
        self.all_rows = rows.double()
        self.broken_rows = 0
        gram = self._gram()
        if not math.isfinite(float(gram.diagonal().sum())):
            gram = self._without_broken_rows()
        self.local = self.all_rows[self.local_rows] if self.dual else self.all_rows

        digits = self.dtype
        if self.dtype == torch.float64 and (self.dual or world == 1):
            u, sigma, vh = torch.linalg.svd(self.all_rows, full_matrices=False)
            self.vectors, self.sigma = (u if self.dual else vh.mT).flip(1), sigma.flip(0)
        else:
            lam, self.vectors = torch.linalg.eigh(gram)
            self.sigma = lam.clamp_min_(0).sqrt_()
            if digits == torch.float64:  # a Gram matrix has lost what float64's own cut would keep
                digits = torch.float32
        self.cut = float(self.sigma[-1]) * relative_cut(digits, self.n, self.k)
        dropped = int(torch.searchsorted(self.sigma, self.cut, right=True))
        self.sigma, self.vectors = self.sigma[dropped:], self.vectors[:, dropped:]
        if self.dual:
            self.squares = gram.diagonal()[self.local_rows]
        else:
            self.squares = self.local.square().sum(dim=1)

    def _gram(self) -> Tensor:
        if self.dual:
            return self.all_rows @ self.all_rows.mT
        gram = self.all_rows.mT @ self.all_rows
        if _world_size() > 1:
            dist.all_reduce(gram)
        return gram

    def _without_broken_rows(self) -> Tensor:
        """Rows with NaN or infinity are set to zero; all processes come here together."""
        finite = self.all_rows.isfinite().all(dim=1, keepdim=True)
        self.all_rows = torch.where(finite, self.all_rows, 0.0)
        broken = (~finite).sum()
        if not self.dual and _world_size() > 1:
            dist.all_reduce(broken)
        self.broken_rows = int(broken)
        return self._gram()

    def weigh(self, function: Callable[[Tensor], Tensor]) -> float:
        """Set the gains and return the largest singular value that they leave."""
        if not len(self.sigma):
            self.gain, self.negligible = self.sigma, torch.ones_like(self.squares).bool()[:, None]
            return 0.0
        self.gain = function(self.sigma).to(self.sigma)
        # A row of negligible norm has no direction: normalising it would invent one.
        if float(self.squares.min()) <= self.cut**2:
            self.negligible = (self.squares <= self.cut**2).unsqueeze(1)
        return float((self.gain * self.sigma).abs().max())

    def operator(self) -> Tensor:
        """The constant matrix of the smaller side: ``U g U^T`` (n x n) or ``W`` (k x k)."""
        return (self.vectors * self.gain) @ self.vectors.mT

    def filtered(self) -> Tensor:
        """``U diag(sigma g) V^T`` for this process's rows."""
        if self.dual:
            return self.finish(self.operator()[self.local_rows] @ self.all_rows)
        return self.finish(self.local @ self.operator())

    def right_vectors(self) -> Tensor:
        """``V^T`` (r x k) with unit rows, for more directions than rows."""
        return (self.vectors / self.sigma).mT @ self.all_rows

    def left_part(self) -> Tensor:
        """``U diag(sigma g)`` for this process's rows."""
        return (self.vectors * (self.sigma * self.gain))[self.local_rows]

    def finish(self, result: Tensor) -> Tensor:
        if self.negligible is not None:
            result = result.masked_fill(self.negligible, 0.0)
        return result.to(self.dtype)


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


def _in_range(gain: Tensor, peak: float, dtype: torch.dtype) -> Tensor:
    """The gain, rescaled by one constant where the result would be too small or large to use."""
    low, high = (1e-3, 1e3) if dtype == torch.float16 else (1e-4, 1e15)
    return gain if peak == 0 or low <= peak <= high else gain / peak


def _gather(local: Tensor) -> tuple[Tensor, int]:
    """All processes' rows in rank order, and where this process's begin."""
    parts = [torch.empty_like(local) for _ in range(_world_size())]
    dist.all_gather(parts, local.contiguous())
    return torch.cat(parts), dist.get_rank() * len(local)
