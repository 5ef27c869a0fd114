"""Student's t tests of differences, Holm's correction, and intervals of correlations and shares."""

import math
import statistics
from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy import stats


def difference(pairs: Sequence[float], zero: float = 0.0) -> dict[str, float]:
    """Test whether the mean of at least two paired differences is ``zero``.

    Return the mean, its 95 % interval, and p by Student's two-sided t test.

    >>> test = difference([1.0, 2.0, 3.0])
    >>> print("{mean} ({low:.3f} to {high:.3f}), p = {p:.3f}".format(**test))
    2.0 (-0.484 to 4.484), p = 0.074
    """
    test = stats.ttest_1samp(pairs, zero)
    low, high = test.confidence_interval(0.95)
    p = test.pvalue
    if math.isnan(p):  # a difference is missing, or all are equal to zero
        p = 1.0
    return {"mean": statistics.fmean(pairs), "low": low, "high": high, "p": p, "zero": zero}


def mean_of_groups(groups: Sequence[Sequence[float]]) -> dict[str, float]:
    """Return the mean of independent groups' means, and its 95 % interval.

    The interval is Welch's: the groups may differ in size and variance.

    >>> print("{mean} ({low:.3f} to {high:.3f})".format(**mean_of_groups([[1.0, 2.0, 3.0]])))
    2.0 (-0.484 to 4.484)
    """
    means = [statistics.fmean(group) for group in groups]
    sizes = np.array([len(group) for group in groups])
    variances = np.array([statistics.variance(group) for group in groups]) / sizes
    freedom = variances.sum() ** 2 / (variances**2 / (sizes - 1)).sum()
    mean = statistics.fmean(means)
    half = stats.t.ppf(0.975, freedom) * math.sqrt(variances.sum()) / len(groups)
    return {"mean": mean, "low": mean - half, "high": mean + half}


def equivalence(pairs: Sequence[float], margin: float) -> float:
    """Return p of two one-sided t tests that the mean lies within ± margin (Schuirmann, 1987).

    >>> round(equivalence([0.1, 0.0, -0.1, 0.0], margin=0.1), 3)
    0.046
    """
    above = stats.ttest_1samp(pairs, -margin, alternative="greater")
    below = stats.ttest_1samp(pairs, margin, alternative="less")
    return float(max(above.pvalue, below.pvalue))


def holm(p: pd.Series) -> pd.Series:
    """Return Holm's corrected p of each test.

    >>> holm(pd.Series({"a": 0.01, "b": 0.04, "c": 0.03})).to_dict()
    {'a': 0.03, 'b': 0.06, 'c': 0.06}
    """
    ordered = p.sort_values()
    corrected = ordered * np.arange(len(p), 0, -1)
    return corrected.clip(upper=1).cummax()[p.index]


def rank_correlation(correlation: float, n: int) -> tuple[float, float]:
    """Return the 95 % interval of Spearman's correlation of n pairs.

    Fisher's transformation with the variance of Bonett and Wright (Psychometrika 2000).

    >>> [round(end, 2) for end in rank_correlation(0.75, 15)]
    [0.32, 0.92]
    """
    half = 1.96 * math.sqrt((1 + correlation**2 / 2) / (n - 3))
    centre = np.arctanh(correlation)  # infinite for a correlation of 1
    return float(np.tanh(centre - half)), float(np.tanh(centre + half))


def rate(count: int, total: int) -> str:
    """Return a share in words, with its 95 % interval (Clopper and Pearson, 1934).

    >>> rate(19, 20)
    '19 of 20 (95.0 %, 75.1 to 99.9)'
    """
    if total == 0:
        return "no such run"
    low, high = stats.binomtest(count, total).proportion_ci(0.95, method="exact")
    return f"{count} of {total} ({100 * count / total:.1f} %, {100 * low:.1f} to {100 * high:.1f})"
