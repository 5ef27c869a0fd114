"""A filter's exponent, which may change over epochs."""

import math
from dataclasses import dataclass
from typing import Any

from rdm_solo.ground.values import check_choice, check_integer, check_number

# Singular values of float32 features span five decades, so sigma^3 leaves few directions. Powers of
# float32 features with such exponents are in float64's range.
LARGEST_EXPONENT = 3


@dataclass(frozen=True)
class Schedule:
    """An exponent as a function of the epoch, from ``start`` to ``end`` within ``epochs`` epochs.

    Exponents lie from -3 to 3. ``constant`` stays at ``start``; ``linear`` and ``cosine`` reach
    ``end`` in epoch ``epochs - 1`` and stay there.

    >>> p = Schedule("linear", -0.1, -0.5, epochs=5)
    >>> [round(p(epoch), 3) for epoch in range(7)]
    [-0.1, -0.2, -0.3, -0.4, -0.5, -0.5, -0.5]
    """

    kind: str
    start: float
    end: float | None = None
    epochs: int | None = None

    def __post_init__(self) -> None:
        check_choice("schedule", self.kind, ("constant", "linear", "cosine"))
        _check_exponent("the start of p's schedule", self.start)
        if self.kind != "constant":
            _check_exponent("the end of p's schedule", self.end)
            check_integer(f"'epochs' of a {self.kind} schedule", self.epochs, 1)

    def __call__(self, epoch: int) -> float:
        if self.kind == "constant" or self.end is None or self.epochs is None:
            return self.start
        steps = self.epochs - 1
        share = 1.0
        if epoch < steps:
            share = epoch / steps
        if self.kind == "cosine":
            share = (1 - math.cos(math.pi * share)) / 2
        return self.start + (self.end - self.start) * share


def _check_exponent(name: str, value: Any, alternative: str = "") -> float:
    return check_number(name, value, -LARGEST_EXPONENT, LARGEST_EXPONENT, alternative=alternative)


def as_schedule(value: object, *, epochs: int | None = None) -> Schedule:
    """Return a number, a mapping or a :class:`Schedule` as a schedule.

    ``epochs`` is the default for a mapping without ``epochs``.

    >>> as_schedule(-0.5)(3)
    -0.5
    >>> as_schedule({"schedule": "linear", "start": 0.0, "end": -1.0}, epochs=3)(1)
    -0.5
    """
    if isinstance(value, Schedule):
        return value
    if isinstance(value, dict) and "schedule" in value:
        for key in value:
            check_choice("a key of p's schedule", key, ("schedule", "start", "end", "epochs"))
        start: Any = value.get("start")  # checked by Schedule
        length = value.get("epochs", epochs)
        return Schedule(value["schedule"], start, value.get("end"), length)
    example = "a schedule such as {schedule: linear, start: -0.1, end: -0.5}"
    return Schedule("constant", _check_exponent("p", value, example))
