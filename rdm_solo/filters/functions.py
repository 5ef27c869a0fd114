"""Functions of singular values and their registry."""

import functools
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from rdm_solo.filters.schedules import as_schedule
from rdm_solo.ground.errors import UserError, first_line
from rdm_solo.ground.values import check_choice, check_integer, check_number

Function = Callable[..., Tensor]


@dataclass(frozen=True)
class Entry:
    """A registered function and its properties, which labels, verdicts and advice use.

    Args:
        function: ``g(sigma, ...)``.
        formula: the function as shown to users, with names of parameters in braces.
        slope: 1 if its absolute value rises with sigma for all values of its parameters, -1 if it
            falls, otherwise 0.
        logarithmic: whether it is a logarithm; logarithms are weak filters on the online branch if
            crops are small.
    """

    function: Function
    formula: str = ""
    slope: int = 0
    logarithmic: bool = False


_ENTRIES: dict[str, Entry] = {}
# The functions of this package, without those that users register; filled at the end.
SHIPPED: dict[str, Entry] = {}


def register(
    name: str, *, formula: str = "", slope: int = 0, logarithmic: bool = False
) -> Callable[[Function], Function]:
    """Register ``g(sigma, ...)`` under a name; :class:`Entry` explains the options.

    ``sigma`` is a float64 tensor of positive singular values. The result is a tensor of the same
    shape, which is cast to float64. A parameter ``p`` is the exponent, and
    ``rows`` is the number of rows of the global batch. All other parameters are set by name:
    ``get(name, keep=8)``, or ``filter.keep=8`` on the command line.

    Shapes: ``(r,) -> (r,)``.

    >>> @register("root")
    ... def root(sigma):
    ...     return sigma.sqrt()
    >>> get("root")(torch.tensor([4.0]))
    tensor([2.])
    """

    def add(function: Function) -> Function:
        # Rerunning a notebook cell replaces its function.
        if name in SHIPPED:
            raise UserError(f"the package has a filter function {name!r}; choose another name.")
        _ENTRIES[name] = Entry(function, formula, slope, logarithmic)
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
    return "p" in _signature(_lookup(function)).parameters


def _signature(function: Function) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except ValueError:  # a builtin such as torch.sqrt, which takes sigma alone
        return inspect.signature(identity)


def formula(name: str, **values: object) -> str:
    """Return the formula of a registered function with these values of its parameters.

    >>> formula("pow", p=-0.5), formula("truncate", keep=8)
    ('σ^-0.5', '1 for the 8 largest σ, otherwise 0')
    """
    entry = _ENTRIES[name]
    shown = {}
    for key, parameter in _signature(entry.function).parameters.items():
        value = values.get(key, parameter.default)
        shown[key] = f"{value:g}" if isinstance(value, Real) else value
    return entry.formula.format(**shown)


@dataclass(frozen=True)
class BoundFunction:
    """A function ``sigma -> g(sigma)`` whose result is checked and cast to sigma's dtype.

    ``rows`` is the number of rows of the global batch, for functions that take it. A function is
    ``elementwise`` if each value depends only on the singular value at the same index.

    >>> BoundFunction(lambda sigma: sigma > 1, "step")(torch.tensor([2.0]))
    tensor([1.])
    """

    function: Function
    name: str
    takes_rows: bool = False
    elementwise: bool = False

    def __call__(self, sigma: Tensor, rows: int | None = None) -> Tensor:
        options = {}
        if self.takes_rows and rows is not None:
            options["rows"] = rows
        gain = self.function(sigma, **options)
        shape = getattr(gain, "shape", None)
        if shape != sigma.shape:
            raise UserError(
                f"the filter function {self.name!r} must return one number for each singular "
                f"value, got shape {tuple(shape or ())} ({type(gain).__name__}) for {len(sigma)}."
            )
        return gain.to(sigma)


def get(name: str | Function, p: float | None = None, **parameters: Any) -> BoundFunction:
    """Return a function ``sigma -> g(sigma)`` by its name, with its parameters filled in.

    ``name`` is a registered name, a function, or a function's import path. As a check, the function
    is called with a few values, and it must return one number for each.

    >>> get("pow", p=-0.5)(torch.tensor([4.0]))
    tensor([0.5000])
    >>> get("torch.sum")
    Traceback (most recent call last):
    ...
    rdm_solo.ground.errors.UserError: the filter function 'torch.sum' must return one number for \
each singular value, got shape () (Tensor) for 8.
    """
    function = _lookup(name)
    name = label(name)
    signature = _signature(function)
    exponent = signature.parameters.get("p")
    if p is not None:
        if exponent is None:
            raise UserError(f"p={p} would be ignored: {name!r} has no exponent; leave it out.")
        parameters["p"] = as_schedule(p)(0)
    elif exponent is not None and exponent.default is exponent.empty:
        raise UserError(f"{name!r} needs an exponent: set p, for example p=-0.5.")
    takes_rows = "rows" in signature.parameters
    rows = {"rows": 1} if takes_rows else {}
    try:
        signature.bind(None, **parameters, **rows)
    except TypeError as error:
        raise UserError(f"the filter function {name}{signature}: {error}.") from error
    bound = BoundFunction(functools.partial(function, **parameters), name, takes_rows)
    try:
        return replace(bound, elementwise=_is_elementwise(bound))
    except UserError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise UserError(f"the filter function {name!r} fails for a tensor: {reason}") from error


def _is_elementwise(gain: BoundFunction) -> bool:
    """Return whether a function's values stay the same when the smallest input is repeated.

    A function that divides by the sum of its inputs, for example, is not elementwise.
    """
    rows = 256
    sigma = torch.logspace(-1, 1, 8, dtype=torch.float64, device="cpu")
    expected = gain(sigma.clone(), rows)
    for copies in (5, 100):
        smallest = sigma[:1].expand(copies)
        repeated = torch.cat([smallest, sigma])
        values = gain(repeated, rows)[copies:]
        if not torch.allclose(values, expected, rtol=1e-12, equal_nan=True):
            return False
    return True


def _lookup(name: str | Function) -> Function:
    if callable(name):
        return name
    if not isinstance(name, str) or "." not in name or name in _ENTRIES:
        name = check_choice("the filter function", name, names())
        return _ENTRIES[name].function
    try:
        function = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"the filter function {name!r} cannot be imported: {error}.") from error
    if not callable(function):
        raise UserError(f"the filter function {name!r} is no function: {function!r:.200}.")
    return function  # type: ignore[no-any-return]


def label(name: str | Function) -> str:
    """Return the name under which a function is shown to users.

    >>> label("pow"), label(torch.asinh)
    ('pow', 'asinh')
    """
    if isinstance(name, str):
        return name
    return getattr(name, "__name__", repr(name))


@register("identity", formula="1")
def identity(sigma: Tensor) -> Tensor:
    """g(sigma) = 1: no filter."""
    return torch.ones_like(sigma)


@register("pow", formula="σ^{p}")
def power(sigma: Tensor, p: float) -> Tensor:
    """g(sigma) = sigma^p: low-pass for p > 0 (DirectPred at p = 1), high-pass for p < 0."""
    return sigma.pow(p)


@register("log", formula="log σ", logarithmic=True)
def log_(sigma: Tensor) -> Tensor:
    """g(sigma) = log(sigma), negative below sigma = 1; sigma grows as sqrt(batch size)."""
    return sigma.log()


@register("log1p", formula="log(1 + σ)", slope=1, logarithmic=True)
def log1p(sigma: Tensor) -> Tensor:
    """g(sigma) = log(1 + sigma)."""
    return sigma.log1p()


@register("log1p_sq", formula="log(1 + σ²)", slope=1, logarithmic=True)
def log1p_sq(sigma: Tensor) -> Tensor:
    """g(sigma) = log(1 + sigma^2)."""
    return sigma.square().log1p()


@register("directcopy", formula="(σ²/σ₁²)^{alpha} + {eps}", slope=1)
def directcopy(sigma: Tensor, alpha: float = 1.0, eps: float = 0.1) -> Tensor:
    """g(sigma) = (sigma^2 / sigma_1^2)^alpha + eps, where sigma_1 is the largest.

    ``alpha=0.5`` has the exponent of DirectPred (Tian et al., ICML 2021), ``alpha=1`` that of
    DirectCopy (Wang et al., 2021). Both use a running correlation (``momentum`` above 0).
    """
    check_number("filter.alpha", alpha, 1e-6)
    check_number("filter.eps", eps, 0)
    share = sigma / sigma.max()
    return share.pow(2 * alpha) + eps


@register("truncate", formula="1 for the {keep} largest σ, otherwise 0")
def truncate(sigma: Tensor, keep: int = 16) -> Tensor:
    """g(sigma) = 1 for the ``keep`` largest and for ties with the last of them, otherwise 0."""
    check_integer("filter.keep", keep, 1)
    largest = sigma.topk(min(keep, len(sigma))).values
    return sigma >= largest.min()


@register("iternorm", formula="σ^-1 after {steps} Newton steps", slope=-1)
def iternorm(sigma: Tensor, rows: int, steps: int = 4) -> Tensor:
    """g = P(sigma^2 / sum sigma^2) sqrt(rows / sum sigma^2), approximately sqrt(rows) / sigma.

    P follows from ``steps`` Newton steps P <- (3 P - P^3 s) / 2 from P = 1. This is iterative
    whitening (Huang et al., CVPR 2019) of the uncentred rows; INTL (Weng et al., ICLR 2024) has
    four steps.
    """
    check_integer("filter.steps", steps, 1)
    total = sigma.square().sum()
    share = sigma.square() / total
    gain = torch.ones_like(sigma)
    for _ in range(steps):
        gain = (3 * gain - gain**3 * share) / 2
    return gain * (rows / total).sqrt()


@register("shrink", formula="(σ²/n + {eps})^(-1/2)", slope=-1)
def shrink(sigma: Tensor, rows: int, eps: float = 0.01) -> Tensor:
    """g(sigma) = (sigma^2 / rows + eps)^(-1/2): whitening that multiplies by at most eps^(-1/2)."""
    check_number("filter.eps", eps, 1e-12)
    lam = sigma.square() / rows
    return (lam + eps).rsqrt()


SHIPPED.update(_ENTRIES)
