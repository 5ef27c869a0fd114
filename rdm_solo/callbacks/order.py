"""The order in which callbacks run, from what each declares."""

from collections.abc import Iterable
from typing import Any

from rdm_solo.messages import UserError


def in_order(callbacks: Iterable[Any]) -> list[Any]:
    """Return the callbacks, each behind those that its class names in ``after``.

    A callback that reads what another one measures in the same hook must run later.

    >>> class Measure: pass
    >>> class Report: after = ("Measure",)
    >>> [type(callback).__name__ for callback in in_order([Report(), Measure()])]
    ['Measure', 'Report']
    """
    waiting, ordered = list(callbacks), []
    while waiting:
        names = {type(callback).__name__ for callback in waiting}
        ready = next((c for c in waiting if names.isdisjoint(getattr(c, "after", ()))), None)
        if ready is None:
            raise UserError(f"callbacks wait for each other: {', '.join(sorted(names))}")
        ordered.append(ready)
        waiting.remove(ready)
    return ordered
