"""When spectra have collapsed: the rules by which a run is watched, and judged afterwards."""

from collections.abc import Sequence
from dataclasses import dataclass

COMPLETE, DIMENSIONAL, WRONG_WAY = "complete collapse", "dimensional collapse", "negative gap"

# Every rank crashes in the first epochs and most recover, so that a single epoch says nothing.
IN_A_ROW = 2
RECOVERING = 1.1  # a value that grows by a tenth from one epoch to the next is on its way up
# Below that share of variance the outputs' mean is the spectrum's first direction, whatever the
# others do: there the variance is to be judged, not the rank.
SPREAD = 0.2
# Equal branches differ by rounding; where there is a gap, it was 1e-3 and more in the logarithm.
NO_GAP = 1e-3


@dataclass(frozen=True)
class MeasuredEpoch:
    """What one measured epoch says; ``epoch`` counts from 1.

    ``variance`` is the projection's variance over its second moment, so that unit vectors and a
    softmax have one scale: 0 where all images get one output, 1 where the outputs' mean is 0.
    """

    epoch: int
    variance: float
    erank: float  # of the projection, before any filter
    dimensions: int
    gap: float  # log of the target's effective rank over the online one's
    softmax: bool = False


@dataclass(frozen=True)
class Bounds:
    """When to warn; ``None`` or 0 switches a rule off. ``warmup`` epochs are not judged by rank and
    variance: both crash there, and most recover."""

    variance: float | None = 0.03
    erank: float | None = 0.21
    gap_epochs: int | None = 3
    warmup: float = 0

    def directions(self, dimensions: int) -> float:
        """The effective rank that is the bound: ``dimensions ** erank``.

        >>> [round(Bounds().directions(k), 1) for k in (32, 256, 2048)]
        [2.1, 3.2, 5.0]
        """
        return float(dimensions ** (self.erank or 0))


def kinds_of_collapse(epochs: Sequence[MeasuredEpoch], bounds: Bounds) -> list[str]:
    """The kinds of collapse that the last measured epochs show.

    >>> flat = [MeasuredEpoch(epoch, 0.001, 1.0, 32, 0.0) for epoch in (8, 9)]
    >>> kinds_of_collapse(flat, Bounds())
    ['complete collapse']
    """
    judged = [epoch for epoch in epochs if epoch.epoch >= bounds.warmup + 1][-IN_A_ROW:]
    found = []
    if len(judged) == IN_A_ROW:
        share = [epoch.variance for epoch in judged]
        if bounds.variance and max(share) < bounds.variance and not _recovering(share):
            found.append(COMPLETE)
        if bounds.erank and all(_few_directions(epoch, bounds) for epoch in judged):
            found += [DIMENSIONAL] * (not _recovering([epoch.erank for epoch in judged]))
    if bounds.gap_epochs:
        last = epochs[-bounds.gap_epochs :]
        if len(last) == bounds.gap_epochs and all(epoch.gap < -NO_GAP for epoch in last):
            found.append(WRONG_WAY)
    return found


def _few_directions(epoch: MeasuredEpoch, bounds: Bounds) -> bool:
    # The uncentred spectrum of a softmax has the mean as its first direction in any good run, too.
    judged = not epoch.softmax and epoch.variance >= SPREAD
    return judged and epoch.erank < bounds.directions(epoch.dimensions)


def _recovering(values: Sequence[float]) -> bool:
    return values[-1] > RECOVERING * values[-2]
