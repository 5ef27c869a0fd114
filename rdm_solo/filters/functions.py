"""Functions of singular values, and the registry that gives them names."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable

import torch
from torch import Tensor

from rdm_solo.filters.schedules import as_schedule
from rdm_solo.messages import suggest

__all__ = ["get", "names", "register", "takes_p"]

Function = Callable[..., Tensor]


_FUNCTIONS: dict[str, Function] = {}


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
