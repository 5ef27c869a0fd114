"""Statistics: Student's t test, Holm's correction, intervals of correlations and shares."""

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from scipy.special import betaincinv, stdtr, stdtrit  # type: ignore[import-untyped, unused-ignore]

Key = TypeVar("Key", bound=Hashable)


class Difference(NamedTuple):
    """The mean of paired differences, its 95 % t interval, and p for a true mean of ``zero``."""

    mean: float
    low: float
    high: float
    p: float
    zero: float = 0.0


def difference(pairs: Sequence[float], zero: float = 0.0) -> Difference:
    """Return Student's two-sided t test of at least two differences.

    >>> test = difference([1.0, 2.0, 3.0])
    >>> [round(value, 3) for value in test]
    [2.0, -0.484, 4.484, 0.074, 0.0]
    """
    n, mean = len(pairs), statistics.fmean(pairs)
    error = statistics.stdev(pairs) / math.sqrt(n)
    half = float(stdtrit(n - 1, 0.975)) * error
    # If the standard error is 0, all differences are equal.
    p = 2 * float(stdtr(n - 1, -abs(mean - zero) / error)) if error else float(mean == zero)
    return Difference(mean, mean - half, mean + half, p, zero)


def rank_correlation(correlation: float, n: int) -> tuple[float, float]:
    """Return the 95 % interval of Spearman's correlation of n pairs.

    Fisher's transformation with the variance of Bonett and Wright (Psychometrika 2000).

    >>> [round(end, 2) for end in rank_correlation(0.75, 15)]
    [0.32, 0.92]
    """
    half = 1.96 * math.sqrt((1 + correlation**2 / 2) / (n - 3))
    centre = math.atanh(max(-0.999999, min(0.999999, correlation)))
    return math.tanh(centre - half), math.tanh(centre + half)


def holm(p: Mapping[Key, float]) -> dict[Key, float]:
    """Return Holm's corrected p of each test.

    >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
    {'a': 0.03, 'b': 0.06, 'c': 0.06}
    """
    corrected: dict[Key, float] = {}
    highest = 0.0
    for rank, key in enumerate(sorted(p, key=lambda key: p[key])):
        highest = max(highest, min(1.0, (len(p) - rank) * p[key]))
        corrected[key] = highest
    return {key: corrected[key] for key in p}


def share(count: int, total: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Clopper and Pearson, 1934).

    >>> [round(end, 4) for end in share(19, 20)]
    [0.7513, 0.9987]
    """
    low = float(betaincinv(count, total - count + 1, 0.025)) if count else 0.0
    high = float(betaincinv(count + 1, total - count, 0.975)) if count < total else 1.0
    return low, high


def rate(count: int, total: int) -> str:
    """Return a share in words, with its interval in per cent.

    >>> rate(19, 20)
    '19 of 20 (95.0 %, 75.1 to 99.9)'
    """
    if not total:
        return "no such run"
    low, high = share(count, total)
    return f"{count} of {total} ({100 * count / total:.1f} %, {100 * low:.1f} to {100 * high:.1f})"
