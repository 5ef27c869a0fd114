"""Hooks on the calls of one module or of one of its methods; copies of the module have none."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Hook:
    """A hook on the calls of one module.

    It does nothing on copies of the module, such as an average of its weights, and on a module that
    was saved with :func:`torch.save`.
    """

    def __init__(self, watched: nn.Module | None, record: Callable[..., None] | None) -> None:
        self.watched, self.record = watched, record

    @torch.compiler.disable  # torch 2.15 fails to trace it, because it appends to a list
    def __call__(self, module: nn.Module, *call: Any) -> None:
        if self.record and (module is self.watched or getattr(module, "_is_replica", False)):
            self.record(*call)  # DataParallel's replicas count

    def __reduce__(self) -> tuple[Any, ...]:
        return Hook, (None, None)


class _Heard:
    """Stands in a module for one of its methods, and passes each call on to listeners."""

    def __init__(self, module: Any, name: str) -> None:
        self.module, self.name = module, name
        self.method, self.before = getattr(module, name), vars(module).get(name)
        self.listeners: list[Callable[..., None]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self.method(*args, **kwargs)
        for listener in self.listeners:
            listener(result, *args, **kwargs)
        return result

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.module, self.name)  # a copy of the module calls its own method

    def remove(self, listener: Callable[..., None]) -> None:
        self.listeners.remove(listener)
        if not self.listeners and vars(self.module).get(self.name) is self:
            delattr(self.module, self.name)
            if self.before is not None:  # a user's replacement
                setattr(self.module, self.name, self.before)


def listen(module: Any, name: str, listener: Callable[..., None]) -> Callable[[], None]:
    """Call the listener with the result and the arguments of each call of the module's method.

    Return a function that removes it.
    """
    heard = vars(module).get(name)
    if not isinstance(heard, _Heard):
        heard = _Heard(module, name)
        setattr(module, name, heard)
    heard.listeners.append(listener)
    return functools.partial(heard.remove, listener)
