"""A filter's exponent, which may change over epochs."""

import math
from dataclasses import dataclass
from typing import Any

from rdm_solo.ground.errors import UserError
from rdm_solo.ground.values import check_choice, check_integer, check_number, finite

# Singular values of float32 features span five decades, so sigma^10 leaves a single direction.
# Much larger exponents overflow float64.
LARGEST_EXPONENT = 10


@dataclass(frozen=True)
class Schedule:
    """An exponent as a function of the epoch, from ``start`` to ``end`` within ``epochs`` epochs.

    Exponents lie from -10 to 10. ``constant`` stays at ``start``; ``linear`` and ``cosine`` reach
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
        for name in ("start", "end"):
            value = getattr(self, name)
            if value is not None:
                check_number(f"{name!r} of a schedule", value, -LARGEST_EXPONENT, LARGEST_EXPONENT)
            elif name == "start" or self.kind != "constant":
                raise UserError(f"a {self.kind} schedule needs a number for {name!r}.")
        if self.kind != "constant":
            check_integer(f"'epochs' of a {self.kind} schedule", self.epochs, 1)

    def __call__(self, epoch: int) -> float:
        if self.kind == "constant" or self.end is None or self.epochs is None:
            return float(self.start)
        share = 1.0 if self.epochs == 1 else min(epoch / (self.epochs - 1), 1.0)
        if self.kind == "cosine":
            share = (1 - math.cos(math.pi * share)) / 2
        return self.start + (self.end - self.start) * share


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
    number = finite(value)
    if number is not None and abs(number) <= LARGEST_EXPONENT:
        return Schedule("constant", number)
    if isinstance(value, dict) and "schedule" in value:
        keys = ("end", "epochs", "schedule", "start")
        for key in sorted(map(str, value)):
            if key not in keys:
                raise UserError(
                    f"p has a schedule with an unknown key {key!r}; use {', '.join(keys)}."
                )
        length = epochs if value.get("epochs") is None else value["epochs"]
        start: Any = value.get("start")  # checked by Schedule
        return Schedule(value["schedule"], start, value.get("end"), length)
    raise UserError(
        f"p must be a number from {-LARGEST_EXPONENT} to {LARGEST_EXPONENT} or a schedule, "
        f"got {value!r:.200}; an example of a schedule is "
        "{schedule: linear, start: -0.1, end: -0.5}."
    )
