"""Hooks on the calls of one module or of one of its methods; copies of the module have none."""

import functools
from collections.abc import Callable
from types import MethodType
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


def listen(module: Any, name: str, listener: Callable[..., None]) -> Callable[[], None]:
    """Call the listener with the result and the arguments of each call of the module's method.

    Return a function that removes it. The replacement is bound like a method, so that a copy of the
    module calls its own.
    """
    bound, before, listeners = getattr(module, name), vars(module).get(name), [listener]

    @functools.wraps(bound)
    def heard(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self is not module:
            return getattr(type(self), name)(self, *args, **kwargs)
        result = bound(*args, **kwargs)
        for each in listeners:
            each(result, *args, **kwargs)
        return result

    replacement = MethodType(heard, module)
    setattr(module, name, replacement)

    def remove() -> None:
        listeners.clear()  # where another listener's replacement still calls this one
        if vars(module).get(name) is replacement:  # it may have been replaced since
            delattr(module, name)
            if before is not None:
                setattr(module, name, before)

    return remove
