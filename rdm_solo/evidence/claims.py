"""What the paper says, judged by the numbers of runs: reproduced, not reproduced, or not testable.

``study.yaml`` has the claims and their rules. A claim sees the runs of each row, seed by seed, so
that rows are compared on the same seeds.
"""

import math
import operator
import statistics
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

REPRODUCED, FAILED, OPEN = "reproduced", "not reproduced", "not testable at this scale"

# Row -> column -> one number for each seed; rows are named "family: name".
Runs = Mapping[str, Mapping[str, Sequence[float]]]


def judge(claim: Mapping[str, Any], runs: Runs) -> tuple[str, str]:
    """The verdict on a claim of ``study.yaml``, and the numbers behind it."""
    patterns = claim.get("rows", [])
    rows = [row for row in runs if any(fnmatchcase(row, pattern) for pattern in patterns)]
    for test in EACH_SEED.keys() & claim.keys():
        return _each_seed(claim, test, {row: runs[row] for row in rows})
    for test in PAIRED.keys() & claim.keys():
        (column,) = claim["columns"]
        other = runs[claim[test]][column]
        return _paired(test, {row: difference(runs[row][column], other) for row in rows})
    return OPEN, "no run"


def _each_seed(claim: Mapping[str, Any], test: str, runs: Runs) -> tuple[str, str]:
    """Reproduced where every seed of every row passes, else which rows do not."""
    failed, numbers = [], []
    for row, columns in runs.items():
        values = [columns[name] for name in claim["columns"]]
        numbers.append(f"{row} " + ", ".join(f"{statistics.fmean(seeds):.2f}" for seeds in values))
        if not all(EACH_SEED[test](value, claim[test]) for seeds in values for value in seeds):
            failed.append(row)
    if not failed:
        verdict = claim.get("passed", REPRODUCED)
    else:
        verdict = f"{FAILED} by {', '.join(failed)}" if len(failed) < len(runs) else FAILED
    return verdict, "; ".join(numbers)


def _paired(test: str, differences: Mapping[str, tuple[float, float]]) -> tuple[str, str]:
    """One verdict where all rows agree, else which rows say what."""
    verdicts: dict[str, list[str]] = {}
    numbers = []
    for row, (mean, error) in differences.items():
        verdicts.setdefault(PAIRED[test](mean, error), []).append(row)
        numbers.append(f"{row} {mean:+.2f} ± {error:.2f}")
    if len(verdicts) == 1:
        return next(iter(verdicts)), "; ".join(numbers)
    mixed = (f"{verdict}: {', '.join(rows)}" for verdict, rows in verdicts.items())
    return "; ".join(mixed), "; ".join(numbers)


def difference(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """Mean of the paired differences and its standard error.

    >>> difference([3.0, 5.0], [1.0, 2.0])
    (2.5, 0.5)
    """
    pairs = [x - y for x, y in zip(a, b)]
    return statistics.fmean(pairs), statistics.stdev(pairs) / math.sqrt(len(pairs))


def _above(mean: float, error: float) -> str:
    """Above the other row by two standard errors."""
    return OPEN if abs(mean) <= 2 * error else REPRODUCED if mean > 0 else FAILED


def _below(mean: float, error: float) -> str:
    return _above(-mean, error)


def _close_to(mean: float, error: float) -> str:
    """Within a point of the other row or above it, beyond two standard errors."""
    close, far = mean - 2 * error > -1, mean + 2 * error < -1
    return REPRODUCED if close else FAILED if far else OPEN


# Tests that every seed of every row has to pass.
EACH_SEED = {"at_least": operator.ge, "at_most": operator.le, "more_than": operator.gt}
# Tests of a row's mean difference from another and of its standard error.
PAIRED = {"above": _above, "below": _below, "close_to": _close_to}
