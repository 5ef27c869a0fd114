"""Hooks on one module's calls, and on those of a method, which copies of the module do not have."""

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any, NamedTuple

import torch
from torch import nn


class Hook:
    """A hook on the calls of one module.

    Copies of the module, such as an average of its weights, have a hook that does nothing, and so
    has one that was saved with :func:`torch.save`.
    """

    def __init__(self, watched: nn.Module, record: Callable[..., None]) -> None:
        self.watched, self.record = watched, record

    @torch.compiler.disable  # which torch 2.15 fails to trace: it appends to a list
    def __call__(self, module: nn.Module, *given: Any) -> None:
        if module is self.watched or getattr(module, "_is_replica", False):  # DataParallel's
            self.record(*given)

    def __reduce__(self) -> tuple[Any, ...]:
        return _no_hook, ()


def _no_hook() -> Callable[..., None]:
    return _nothing


def _nothing(*given: Any) -> None:
    """What the hook of a copy does."""


class Listening(NamedTuple):
    """The handle of a listener, which can be removed as that of a hook."""

    module: Any
    method: str
    listener: Callable[..., None]

    def remove(self) -> None:
        there = vars(self.module).get(self.method)
        if getattr(there, "watched", None) is not self.module:
            return  # it was replaced since
        there.listeners.remove(self.listener)
        if not there.listeners:
            delattr(self.module, self.method)
            if there.before:
                setattr(self.module, self.method, there.before)


def listen(module: Any, method: str, listener: Callable[..., None]) -> Listening:
    """Call the listener with the result and the arguments of each call of the module's method."""
    there = vars(module).get(method)
    if getattr(there, "watched", None) is not module:
        before = None if hasattr(there, "watched") else there  # not what was copied with the module
        there = _heard(module, method, before)
        setattr(module, method, there)
    there.listeners.append(listener)
    return Listening(module, method, listener)


def _heard(module: Any, method: str, before: Callable[..., Any] | None) -> Any:
    """What takes the method's place, or that of what a user had put ``before`` in its place.

    It is a method, and no function, so that a copy of the module gets its own.
    """
    original = before or getattr(type(module), method)

    @functools.wraps(original)
    def heard(self: Any, *args: Any, **options: Any) -> Any:
        result = original(*args, **options) if before else original(self, *args, **options)
        if self is module:
            for listener in heard.listeners:  # type: ignore[attr-defined]
                listener(result, *args, **options)
        return result

    heard.watched, heard.before = module, before  # type: ignore[attr-defined]
    heard.listeners = []  # type: ignore[attr-defined]
    return MethodType(heard, module)
