"""The order in which callbacks run, from what each declares."""

from collections.abc import Iterable
from typing import Any

from rdm_solo.messages import UserError


def in_order(callbacks: Iterable[Any]) -> list[Any]:
    """The callbacks, each behind those that its class names in ``after``; else as they are given.

    A callback that reads what another one measures in the same hook must run later.

    >>> class Measure: pass
    >>> class Report: after = ("Measure",)
    >>> [type(callback).__name__ for callback in in_order([Report(), Measure()])]
    ['Measure', 'Report']
    """
    waiting, ordered = list(callbacks), []
    while waiting:
        names = {type(callback).__name__ for callback in waiting}
        ready = [c for c in waiting if names.isdisjoint(getattr(c, "after", ()))]
        if not ready:
            raise UserError(f"callbacks wait for each other: {', '.join(sorted(names))}")
        ordered.append(ready[0])
        waiting.remove(ready[0])
    return ordered
