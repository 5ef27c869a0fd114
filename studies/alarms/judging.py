"""Which runs failed, and in which epoch the package's rules or simpler ones report a collapse."""

import math
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rdm_solo.collapse.rules import WRONG_WAY, Bounds, MeasuredEpoch, kinds_of_collapse
from studies.alarms.plan import PLAN
from studies.alarms.runs import READ
from studies.table import Row, series

WARMUP = 3
CLASSES = {"textures": 12, "angles": 12, "digits": 10}
PREVALENCE = 0.1  # share of failed runs for which precision is stated
LABELS = ("val/knn_acc1", "val/acc1")  # columns that need labelled images


def gain(row: Row) -> float:
    """Return the final linear accuracy minus the untrained network's, in percentage points."""
    return float(row["linear_trained"]) - float(row["linear_untrained"])


def collapsed(row: Row) -> bool:
    """Return whether the run failed: its linear accuracy gained less than the plan's margin."""
    return gain(row) < PLAN["margin"]


def history(row: Row, labels: bool = True) -> list[MeasuredEpoch]:
    """Return the epochs of a run as the rules read them; epoch 0 is the untrained network."""
    names = [name for name in READ if labels or name not in LABELS]
    columns = [series(row[name]) for name in names]
    k = int(row["dimensions"])
    epochs = [
        {name: value for name, value in zip(names, values) if not math.isnan(value)}
        for values in zip(*columns)
    ]
    classes = CLASSES[row["data"]] if labels else None
    return [MeasuredEpoch.read(e, number, k, classes) for number, e in enumerate(epochs)]


Epochs = Sequence[MeasuredEpoch]
Alarm = Callable[[Row], int | None]  # returns the epoch of a run's first alarm


def package_rules(
    bounds: Bounds | None = None, labels: bool = True, without: Sequence[str] = ()
) -> Alarm:
    """Return a rule: the first alarm of any of the package's rules except the negative gap."""
    bounds = bounds or Bounds(warmup=WARMUP)

    def alarm(row: Row) -> int | None:
        epochs = history(row, labels)
        for end in range(1, len(epochs) + 1):
            kinds = kinds_of_collapse(epochs[:end], bounds)
            if {*kinds} - {WRONG_WAY, *without}:
                return epochs[end - 1].epoch
        return None

    return alarm


def below(column: str, bound: Callable[[float], float], in_a_row: int = 2) -> Alarm:
    """Return a rule on one column: the last ``in_a_row`` measured values are below a bound.

    ``bound`` computes it from the untrained network's value.
    """

    def alarm(row: Row) -> int | None:
        values = series(row[column])
        limit, count = bound(values[0]), 0
        for epoch, value in enumerate(values):
            if epoch <= WARMUP or math.isnan(value):
                continue
            count = count + 1 if value < limit else 0
            if count == in_a_row:
                return epoch
        return None

    return alarm


class Rates(NamedTuple):
    """Counts of failed runs, those detected, healthy runs, and false alarms among them."""

    detected: int
    collapses: int
    false: int
    healthy: int

    @property
    def precision(self) -> float:
        """Return the share of alarms that are right if one run in ten fails."""
        hits = PREVALENCE * self.detected / max(self.collapses, 1)
        alarms = hits + (1 - PREVALENCE) * self.false / max(self.healthy, 1)
        return hits / alarms if alarms else math.nan


@dataclass(frozen=True)
class Judged:
    """A run, whether it failed, and the epoch of its first alarm."""

    row: Row
    collapsed: bool
    warned: int | None


def judge(rows: Sequence[Row], alarm: Alarm) -> list[Judged]:
    """Judge the runs that did not diverge; a diverged run stops with an error by itself."""
    return [Judged(row, collapsed(row), alarm(row)) for row in rows if not row["diverged"]]


def rates(runs: Sequence[Judged]) -> Rates:
    hits = [run.warned is not None for run in runs if run.collapsed]
    false = [run.warned is not None for run in runs if not run.collapsed]
    return Rates(sum(hits), len(hits), sum(false), len(false))


def intervals(runs: Sequence[Judged], repeats: int = 2000) -> dict[str, tuple[float, float]]:
    """Return 95 % intervals of the rates, in per cent, bootstrapped over settings.

    Runs of one setting are alike, so whole settings are drawn with replacement.
    """
    by_setting: Mapping[str, list[Judged]] = defaultdict(list)
    for run in runs:
        by_setting[run.row["setting"]].append(run)
    groups, dice = list(by_setting.values()), random.Random(0)
    samples: dict[str, list[float]] = {"detected": [], "false": [], "precision": []}
    for _ in range(repeats):
        drawn = [run for group in dice.choices(groups, k=len(groups)) for run in group]
        sample = rates(drawn)
        if sample.collapses and sample.healthy:
            samples["detected"].append(100 * sample.detected / sample.collapses)
            samples["false"].append(100 * sample.false / sample.healthy)
            if not math.isnan(sample.precision):
                samples["precision"].append(100 * sample.precision)
    return {name: _ends(values) for name, values in samples.items()}


def _ends(values: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(values)
    if not ordered:
        return math.nan, math.nan
    return ordered[int(0.025 * len(ordered))], ordered[
        min(len(ordered) - 1, int(0.975 * len(ordered)))
    ]
