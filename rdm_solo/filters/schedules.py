"""A filter's exponent, which may change over epochs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rdm_solo.ground.errors import UserError
from rdm_solo.ground.values import check_choice, check_integer, check_number

# Singular values of float32 features span five decades, so sigma^3 leaves few directions. Powers of
# float32 features with such exponents are in float64's range.
LARGEST_EXPONENT = 3
KINDS = ("steps", "linear", "cosine")


@dataclass(frozen=True)
class Schedule:
    """An exponent as a function of the epoch, given in some epochs.

    ``exponents`` has epochs, counted from 1 and in ascending order, and their exponents. ``steps``
    keeps each exponent until the next one; ``linear`` and ``cosine`` change it gradually. The last
    one stays. Calls count epochs from 0, as Lightning does.

    >>> p = Schedule("steps", {1: -0.5, 3: 0.0})
    >>> [p(epoch) for epoch in range(4)]
    [-0.5, -0.5, 0.0, 0.0]
    >>> p = Schedule("linear", {1: -0.1, 5: -0.5})
    >>> [round(p(epoch), 3) for epoch in range(7)]
    [-0.1, -0.2, -0.3, -0.4, -0.5, -0.5, -0.5]
    """

    kind: str
    exponents: Mapping[int, float]

    def __post_init__(self) -> None:
        check_choice("schedule", self.kind, KINDS)
        for epoch, p in self.exponents.items():
            check_integer("an epoch of p's schedule", epoch, 1)
            _check_exponent(f"p from epoch {epoch}", p)
        epochs = list(self.exponents)
        if epochs[:1] != [1] or epochs != sorted(epochs):
            raise UserError(
                "the epochs of p's schedule must begin with 1 and rise, as in "
                f"{{schedule: steps, 1: -0.5, 11: 0}}, got {epochs}."
            )

    def __call__(self, epoch: int) -> float:
        number = epoch + 1
        first = max(key for key in self.exponents if key <= number)
        later = [key for key in self.exponents if key > number]
        start = float(self.exponents[first])
        if self.kind == "steps" or not later:
            return start
        following = min(later)
        share = (number - first) / (following - first)
        if self.kind == "cosine":
            share = (1 - math.cos(math.pi * share)) / 2
        return start + (self.exponents[following] - start) * share


def _check_exponent(name: str, value: Any, alternative: str = "") -> float:
    return check_number(name, value, -LARGEST_EXPONENT, LARGEST_EXPONENT, alternative=alternative)


def as_schedule(value: object, *, epochs: int | None = None) -> Schedule:
    """Return a number, a mapping or a :class:`Schedule` as a schedule.

    ``epochs`` is the default for a linear or cosine schedule without ``epochs``, the epoch in which
    it reaches its end.

    >>> as_schedule(-0.5)(3)
    -0.5
    >>> as_schedule({"schedule": "steps", 1: -0.5, 11: 0})(10)
    0.0
    >>> as_schedule({"schedule": "linear", "start": 0.0, "end": -1.0}, epochs=3)(1)
    -0.5
    """
    if isinstance(value, Schedule):
        return value
    if not isinstance(value, Mapping) or "schedule" not in value:
        example = "a schedule such as {schedule: steps, 1: -0.5, 11: 0}"
        return Schedule("steps", {1: _check_exponent("p", value, example)})
    entries: dict[Any, Any] = dict(value)
    kind = check_choice("schedule", entries.pop("schedule"), KINDS)
    if kind == "steps":
        return Schedule(kind, entries)
    for key in entries:
        check_choice("a key of p's schedule", key, ("start", "end", "epochs"))
    start = _check_exponent("the start of p's schedule", entries.get("start"))
    end = _check_exponent("the end of p's schedule", entries.get("end"))
    last = check_integer(f"'epochs' of a {kind} schedule", entries.get("epochs", epochs), 1)
    return Schedule(kind, {1: start, last: end})
