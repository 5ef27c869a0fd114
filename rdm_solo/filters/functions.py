"""Functions of singular values, and the registry that gives them names."""

import functools
import inspect
import math
import pkgutil
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rdm_solo.filters.schedules import as_schedule
from rdm_solo.messages import UserError, suggest

Function = Callable[..., Tensor]

_FUNCTIONS: dict[str, Function] = {}


def register(name: str) -> Callable[[Function], Function]:
    """Register ``g(sigma)`` or ``g(sigma, p)`` under a name that YAML and Python can use.

    ``sigma`` is a float64 tensor of positive singular values; the result has its shape and holds
    real numbers: float64 or float32, or whole numbers or booleans, which are exact.

    >>> @register("root")
    ... def root(sigma):
    ...     return sigma.sqrt()
    >>> get("root")(torch.tensor([4.0]))
    tensor([2.])
    """

    def add(function: Function) -> Function:
        known = _FUNCTIONS.setdefault(name, function)
        if known.__qualname__ != function.__qualname__:
            raise UserError(
                f"the filter function {name!r} is registered already, as "
                f"{known.__module__}.{known.__qualname__}; choose another name."
            )
        _FUNCTIONS[name] = function  # a notebook's cell that is run again
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

    ``name`` is registered, or the full name of a function that can be imported, or the function
    itself. It is called once, on eight values, to see that it returns as many.

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
            f"p is an exponent and the filter function {label(name)!r} has none, got p={p}; "
            "leave p out or choose 'pow'."
        )
    checked = functools.partial(_checked, function, label(name))
    checked.__name__ = label(name)  # type: ignore[attr-defined]
    checked(torch.logspace(1, -1, 8, dtype=torch.float64, device="cpu"))
    checked.of_each = _of_each(checked)  # type: ignore[attr-defined]
    return checked


def _of_each(function: Function) -> bool:
    """Whether values stay the same where the least singular value comes a few more times.

    A filter may then leave it to the device how many directions of a batch are rounding noise. A
    share of the sum, say, does not stay the same.
    """
    sigma = torch.logspace(-1, 1, 8, dtype=torch.float64, device="cpu")
    try:
        values = [function(torch.cat([sigma[:1].expand(n), sigma]))[n:] for n in (0, 5, 100)]
    except ValueError:  # of a function that takes no more than so many
        return False
    return all(torch.allclose(v, values[0], rtol=1e-12, equal_nan=True) for v in values)


def _checked(function: Function, name: str, sigma: Tensor) -> Tensor:
    """What the function returns, if it is a tensor with a number for each singular value."""
    try:
        gain: object = function(sigma)
    except Exception as error:  # of anyone's function: one sentence for all
        raise UserError(
            f"the filter function {name!r} fails on a tensor of {len(sigma)} ({error})."
        ) from error
    return real_values(gain, sigma, name)


def real_values(gain: object, sigma: Tensor, name: str) -> Tensor:
    """What a function returned for sigma, in its dtype; or a sentence that refuses it.

    >>> real_values(torch.tensor([True]), torch.tensor([2.0]), "step")
    tensor([1.])
    """
    must = f"the filter function {name!r} must return one number for each singular value"
    if not isinstance(gain, Tensor) or gain.shape != sigma.shape:
        got = f"shape {tuple(gain.shape)}" if isinstance(gain, Tensor) else type(gain).__name__
        raise UserError(f"{must}, got {got} for {len(sigma)} of them.")
    if gain.is_complex() or (gain.is_floating_point() and torch.finfo(gain.dtype).bits < 32):
        raise UserError(
            f"{must}, real and with the digits of float32 or float64, got {gain.dtype}."
        )
    return gain.to(sigma)


def number(x: Tensor) -> Any:
    """A tensor's one number where it lies in the host's own memory; else the tensor.

    Reading it from a device would wait for that. Both can be compared and multiplied.

    >>> number(torch.tensor(2.5)), number(torch.tensor(2.5, device="meta")).device
    (2.5, device(type='meta'))
    """
    return x.item() if x.device.type == "cpu" else x


def _lookup(name: str | Function) -> Function:
    if isinstance(name, str) and name in _FUNCTIONS:
        return _FUNCTIONS[name]
    if isinstance(name, str) and "." in name:
        try:
            function = pkgutil.resolve_name(name)
        except Exception as error:  # a module of one's own can fail in any way
            raise UserError(
                f"the filter function {name!r} cannot be imported ({error}); give a registered "
                f"name ({', '.join(names())}) or MODULE.FUNCTION."
            ) from error
        if not callable(function):
            kind = type(function).__name__
            raise UserError(f"the filter function {name!r} is a {kind}, no function.")
    elif callable(name):
        function = name
    else:
        raise UserError(
            f"there is no filter function {name!r}{suggest(name, names()) or '.'} "
            f"Registered are {', '.join(names())}; rdm_solo.filters.register adds one."
        )
    # The standard library knows no tensors, but has functions that delete files or run programs.
    named = inspect.isroutine(function) or inspect.isclass(function)
    module = str(getattr(function, "__module__", "")).split(".")[0]
    if named and module in sys.stdlib_module_names:
        raise UserError(
            f"the filter function {label(name)!r} is part of Python's standard library, which has "
            "no functions of a tensor; give one such as torch.asinh, or one of your own."
        )
    return function  # type: ignore[no-any-return]


def label(name: str | Function) -> str:
    """A function's name for a reader.

    >>> label("pow"), label(torch.asinh)
    ('pow', 'asinh')
    """
    return name if isinstance(name, str) else getattr(name, "__name__", repr(name))


@register("identity")
def identity(sigma: Tensor) -> Tensor:
    """g(sigma) = 1: no filter, the symmetric baseline."""
    return torch.ones_like(sigma)


@register("pow")
def power(sigma: Tensor, p: float) -> Tensor:
    """g(sigma) = sigma^p: low-pass for p > 0 (DirectPred at p = 1), high-pass for p < 0.

    Powers that would leave the range of float64 are those of sigma / max(sigma): normalised rows
    are the same.
    """
    powers = sigma.pow(p)
    if not len(sigma):
        return powers
    least, most = map(number, powers.aminmax())
    fits = (least > 1e-290) & (most < math.inf)
    if fits is True:
        return powers
    fits = torch.as_tensor(fits, device=sigma.device)
    return torch.where(fits, powers, (sigma / sigma.max()).pow(p))


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
    # Beyond 1e9 the 1 is rounded away, and the square may leave the range.
    return torch.where(sigma < 1e9, sigma.square().log1p(), 2 * sigma.log())
