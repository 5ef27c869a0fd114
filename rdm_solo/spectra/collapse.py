"""When spectra have collapsed: the rules by which a run is watched, and judged afterwards."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

COMPLETE, DIMENSIONAL = "complete collapse", "dimensional collapse"
UNIFORM, WRONG_WAY = "equal assignments", "negative gap"

# Every rank crashes in the first epochs and most recover, so that a single epoch says nothing.
IN_A_ROW = 2
# A value is on its way up where it passes its bound within that many epochs, if it goes on to grow
# by the factor of the last one.
AHEAD = 10
# Equal branches differ by rounding; where there is a gap, it was 1e-3 and more in the logarithm.
NO_GAP = 1e-3
# Batch norm alone keeps two directions apart, so that fewer than these are too few in any space.
FEWEST = 2.2
# A softmax that gives all images one assignment has an effective rank of 1 (uncentred).
ONE_ASSIGNMENT = 1.2


@dataclass(frozen=True)
class MeasuredEpoch:
    """What one measured epoch says; ``epoch`` counts from 1.

    The outputs are the projections before any filter, around the mean of their step. ``variance``
    is theirs over their second moment: 0 where all images get one output, 1 where the outputs' mean
    is 0. ``erank`` is their effective rank: in the uncentred spectrum a large mean hides how many
    directions they differ in. Of methods with a softmax the variance is that of the logits, the
    rank that of the vectors that the last layer makes these from; ``assigned`` is the uncentred
    effective rank of their softmax, NaN where there is none.
    """

    epoch: int
    variance: float
    erank: float
    dimensions: int
    gap: float  # log of the target's effective rank over the online one's
    assigned: float = math.nan


@dataclass(frozen=True)
class Bounds:
    """When to warn; ``None`` or 0 switches a rule off. ``warmup`` epochs are not judged by rank and
    variance: both crash there, and most recover. The study of the warnings had 3."""

    variance: float | None = 0.1
    erank: float | None = 0.21
    gap_epochs: int | None = 3
    warmup: float = 3
    fewest: float = FEWEST
    assignment: float = ONE_ASSIGNMENT

    def directions(self, dimensions: int) -> float:
        """The effective rank that is the bound: ``dimensions ** erank``, but not below ``fewest``,
        nor above half of the dimensions.

        >>> [round(Bounds().directions(k), 1) for k in (4, 32, 256, 2048)]
        [2.0, 2.2, 3.2, 5.0]
        """
        bound = max(self.fewest, float(dimensions ** (self.erank or 0)))
        return min(bound, dimensions / 2)

    @property
    def epochs_read(self) -> int:
        """How many of the last measured epochs the rules read."""
        return max(IN_A_ROW, self.gap_epochs or 0)


@dataclass(frozen=True)
class Rule:
    """A kind of collapse: what is read of an epoch, and the bound that it must not fall below.

    ``bound`` is None where the rule is off. A rule that ``waits`` does not judge the warm-up, nor
    values on their way up.
    """

    kind: str
    answer: str  # to whether anything collapsed
    measures: str
    value: Callable[[MeasuredEpoch], float]
    bound: Callable[[MeasuredEpoch, Bounds], float | None]
    in_a_row: Callable[[Bounds], int] = lambda bounds: IN_A_ROW
    waits: bool = True


RULES = (
    Rule(
        COMPLETE,
        "yes, completely",
        "the variance is",
        value=lambda epoch: epoch.variance,
        bound=lambda epoch, bounds: bounds.variance,
    ),
    Rule(
        DIMENSIONAL,
        "yes, into few directions",
        "the number of directions is",
        value=lambda epoch: epoch.erank,
        bound=lambda epoch, bounds: bounds.directions(epoch.dimensions) if bounds.erank else None,
    ),
    Rule(
        UNIFORM,
        "yes, all images get nearly the same assignment",
        "the assignments' rank is",
        value=lambda epoch: epoch.assigned,
        bound=lambda epoch, bounds: None if bounds.variance is None else bounds.assignment,
    ),
    Rule(
        WRONG_WAY,
        "the online branch leads",
        "the gap is",
        value=lambda epoch: epoch.gap,
        bound=lambda epoch, bounds: -NO_GAP,
        in_a_row=lambda bounds: bounds.gap_epochs or 0,
        waits=False,
    ),
)

FOUND, RISING = "found", "below its bound, but rising"


def states(epochs: Sequence[MeasuredEpoch], bounds: Bounds) -> dict[str, str]:
    """The kinds of collapse that the last measured epochs show, and whether they recover from it.

    >>> flat = [MeasuredEpoch(epoch, 0.001, 9.0, 32, 0.0) for epoch in (8, 9)]
    >>> states(flat, Bounds())
    {'complete collapse': 'found'}
    """
    shown = {}
    for rule in RULES:
        needed = rule.in_a_row(bounds)
        first = bounds.warmup + 1 if rule.waits else 1
        judged = [epoch for epoch in epochs if epoch.epoch >= first][-needed:] if needed else []
        limits = [rule.bound(epoch, bounds) for epoch in judged]
        values = [rule.value(epoch) for epoch in judged]
        if not needed or len(judged) < needed:
            continue
        if all(limit is not None and value < limit for value, limit in zip(values, limits)):
            rises = rule.waits and _rises(values, limits[-1] or 0)
            shown[rule.kind] = RISING if rises else FOUND
    if shown.get(COMPLETE) == FOUND:
        for kind in (DIMENSIONAL, UNIFORM):  # of what is hardly there
            shown.pop(kind, None)
    return shown


def kinds_of_collapse(epochs: Sequence[MeasuredEpoch], bounds: Bounds) -> list[str]:
    """The kinds of collapse that the last measured epochs show and do not recover from.

    >>> flat = [MeasuredEpoch(epoch, 0.001, 9.0, 32, 0.0) for epoch in (8, 9)]
    >>> kinds_of_collapse(flat, Bounds())
    ['complete collapse']
    """
    return [kind for kind, state in states(epochs, bounds).items() if state == FOUND]


def _rises(values: Sequence[float], limit: float) -> bool:
    before, now = values[-2:]
    return now > before > 0 and now * (now / before) ** AHEAD >= limit
