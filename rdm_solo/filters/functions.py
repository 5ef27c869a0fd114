"""Functions of singular values and their registry."""

import functools
import inspect
import math
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rdm_solo.devices import item_if_cpu
from rdm_solo.filters.schedules import as_schedule
from rdm_solo.messages import UserError, suggest

Function = Callable[..., Tensor]


@dataclass(frozen=True)
class Entry:
    """A registered function and its properties, which labels, verdicts and advice use.

    Args:
        function: ``g(sigma)`` or ``g(sigma, p)``.
        formula: the function as shown to users, with ``{p}`` for the exponent.
        increasing: whether its absolute value increases with sigma for every exponent.
        logarithmic: whether it is a logarithm; logarithms are weak filters on the online branch if
            crops are small.
    """

    function: Function
    formula: str = ""
    increasing: bool = False
    logarithmic: bool = False


_ENTRIES: dict[str, Entry] = {}


def register(
    name: str, *, formula: str = "", increasing: bool = False, logarithmic: bool = False
) -> Callable[[Function], Function]:
    """Register ``g(sigma)`` or ``g(sigma, p)`` under a name; :class:`Entry` explains the options.

    ``sigma`` is a float64 tensor of positive singular values. The result must have the same shape
    and a real dtype: float64, float32, integer or boolean.

    Shapes: ``(r,) -> (r,)``.

    >>> @register("root")
    ... def root(sigma):
    ...     return sigma.sqrt()
    >>> get("root")(torch.tensor([4.0]))
    tensor([2.])
    """

    def add(function: Function) -> Function:
        # Rerunning a notebook cell replaces its function.
        existing = _ENTRIES.get(name)
        if existing and existing.function.__qualname__ != function.__qualname__:
            raise UserError(
                f"the filter function {name!r} is already registered; choose another name."
            )
        _ENTRIES[name] = Entry(function, formula, increasing, logarithmic)
        return function

    return add


def names() -> list[str]:
    """Return the registered names, sorted.

    >>> [name for name in names() if name.startswith("log")]
    ['log', 'log1p', 'log1p_sq']
    """
    return sorted(_ENTRIES)


def takes_p(function: str | Function) -> bool:
    """Return whether a function takes an exponent ``p``.

    >>> takes_p("pow"), takes_p("log1p")
    (True, False)
    """
    function = _lookup(function)
    try:
        return "p" in inspect.signature(function).parameters
    except ValueError:  # builtins such as torch.sqrt have no signature
        return False


@dataclass(frozen=True)
class BoundFunction:
    """A function ``sigma -> g(sigma)`` whose result is checked and cast to sigma's dtype.

    It is ``elementwise`` if each value depends only on the singular value at the same index.

    >>> BoundFunction(lambda sigma: sigma > 1, "step")(torch.tensor([2.0]))
    tensor([1.])
    """

    function: Function
    name: str
    elementwise: bool = False

    def __call__(self, sigma: Tensor) -> Tensor:
        gain: object = self.function(sigma)
        must = f"the filter function {self.name!r} must return one number for each singular value"
        if not isinstance(gain, Tensor) or gain.shape != sigma.shape:
            got = f"shape {tuple(gain.shape)}" if isinstance(gain, Tensor) else type(gain).__name__
            raise UserError(f"{must}, got {got} for {len(sigma)} of them.")
        if gain.is_complex() or (gain.is_floating_point() and torch.finfo(gain.dtype).bits < 32):
            raise UserError(f"{must}, real and in float32 or float64, got {gain.dtype}.")
        return gain.to(sigma)


def get(name: str | Function, p: float | None = None) -> BoundFunction:
    """Return a function ``sigma -> g(sigma)`` by its name, with the exponent p filled in.

    ``name`` is a registered name, a function, or a function's import path. As a check, the function
    is called with a few values, and it must return one number for each.

    >>> get("pow", p=-0.5)(torch.tensor([4.0]))
    tensor([0.5000])
    >>> get("torch.sum")
    Traceback (most recent call last):
    ...
    rdm_solo.messages.UserError: the filter function 'torch.sum' must return one number for each \
singular value, got shape () for 8 of them.
    """
    function = _lookup(name)
    if takes_p(function):
        if p is None:
            raise UserError(f"the filter function {label(name)!r} needs an exponent p, got none.")
        function = functools.partial(function, p=as_schedule(p)(0))
    elif p is not None:
        raise UserError(
            f"the filter function {label(name)!r} takes no exponent, got p={p}; "
            "omit p or choose 'pow'."
        )
    bound = BoundFunction(function, label(name))
    return replace(bound, elementwise=_is_elementwise(bound))


def _is_elementwise(gain: BoundFunction) -> bool:
    """Return whether a function's values stay the same when the smallest input is repeated.

    A function that divides by the sum of its inputs, for example, is not elementwise.
    """
    sigma = torch.logspace(-1, 1, 8, dtype=torch.float64, device="cpu")
    values = [gain(torch.cat([sigma[:1].expand(n), sigma]))[n:] for n in (0, 5, 100)]
    return all(torch.allclose(v, values[0], rtol=1e-12, equal_nan=True) for v in values)


def _lookup(name: str | Function) -> Function:
    if callable(name):
        return name
    if name in _ENTRIES:
        return _ENTRIES[name].function
    if "." not in str(name):
        raise UserError(
            f"unknown filter function {name!r}{suggest(name, names()) or '.'} "
            f"Registered: {', '.join(names())}. Add others with rdm_solo.filters.register."
        )
    try:
        function = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"the filter function {name!r} cannot be imported ({error}); pass a registered "
            f"name ({', '.join(names())}) or MODULE.FUNCTION."
        ) from error
    if not callable(function):
        kind = type(function).__name__
        raise UserError(f"the filter function {name!r} is a {kind}, not a function.")
    return function  # type: ignore[no-any-return]


def label(name: str | Function) -> str:
    """Return the name under which a function is shown to users.

    >>> label("pow"), label(torch.asinh)
    ('pow', 'asinh')
    """
    return name if isinstance(name, str) else getattr(name, "__name__", repr(name))


@register("identity", formula="1")
def identity(sigma: Tensor) -> Tensor:
    """g(sigma) = 1: no filter."""
    return torch.ones_like(sigma)


@register("pow", formula="σ^{p}")
def power(sigma: Tensor, p: float) -> Tensor:
    """g(sigma) = sigma^p: low-pass for p > 0 (DirectPred at p = 1), high-pass for p < 0.

    If a power is out of float64's range, all powers are those of sigma / max(sigma). This makes no
    difference to rows that are normalised afterwards.
    """
    powers = sigma.pow(p)
    if not len(sigma):
        return powers
    least, most = map(item_if_cpu, powers.aminmax())
    fits = (least > 1e-290) & (most < math.inf)
    if fits is True:
        return powers
    fits = torch.as_tensor(fits, device=sigma.device)
    return torch.where(fits, powers, (sigma / sigma.max()).pow(p))


@register("log", formula="log σ", logarithmic=True)
def log_(sigma: Tensor) -> Tensor:
    """g(sigma) = log(sigma), negative below sigma = 1; sigma grows as sqrt(batch size)."""
    return sigma.log()


@register("log1p", formula="log(1 + σ)", increasing=True, logarithmic=True)
def log1p(sigma: Tensor) -> Tensor:
    """g(sigma) = log(1 + sigma)."""
    return sigma.log1p()


@register("log1p_sq", formula="log(1 + σ²)", increasing=True, logarithmic=True)
def log1p_sq(sigma: Tensor) -> Tensor:
    """g(sigma) = log(1 + sigma^2)."""
    # Above 1e9, adding 1 changes nothing and the square may overflow.
    return torch.where(sigma < 1e9, sigma.square().log1p(), 2 * sigma.log())


# The functions of this package, without those that users register.
SHIPPED = dict(_ENTRIES)
