"""Paired differences over seeds: Student's t intervals, and Holm's correction of several tests."""

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from scipy.special import stdtr, stdtrit  # type: ignore[import-untyped, unused-ignore]

Key = TypeVar("Key", bound=Hashable)


class Difference(NamedTuple):
    """A mean of paired differences, its 95 % t interval, and p of the mean being ``zero``."""

    mean: float
    low: float
    high: float
    p: float


def difference(pairs: Sequence[float], zero: float = 0.0) -> Difference:
    """Student's t, two-sided, of two and more differences that are taken as normal.

    >>> found = difference([1.0, 2.0, 3.0])
    >>> [round(value, 3) for value in found]
    [2.0, -0.484, 4.484, 0.074]
    """
    n, mean = len(pairs), statistics.fmean(pairs)
    error = statistics.stdev(pairs) / math.sqrt(n)
    half = float(stdtrit(n - 1, 0.975)) * error
    # Without an error all differences are the same.
    p = 2 * float(stdtr(n - 1, -abs(mean - zero) / error)) if error else float(mean == zero)
    return Difference(mean, mean - half, mean + half, p)


def holm(p: Mapping[Key, float]) -> dict[Key, float]:
    """Holm's corrected p of each test: below α for all that may be called at level α together.

    >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
    {'a': 0.03, 'b': 0.06, 'c': 0.06}
    """
    corrected: dict[Key, float] = {}
    highest = 0.0
    for rank, key in enumerate(sorted(p, key=lambda key: p[key])):
        highest = max(highest, min(1.0, (len(p) - rank) * p[key]))
        corrected[key] = highest
    return {key: corrected[key] for key in p}
