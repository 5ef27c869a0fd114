"""Which runs failed, and in which epoch the package's rules or simpler ones report a collapse."""

import math
import random
from collections.abc import Mapping
from typing import Any

import pandas as pd  # type: ignore[import-untyped, unused-ignore]

from rdm_solo.collapse.rules import RULES, WRONG_WAY, Bounds, MeasuredEpoch, kinds_of_collapse
from rdm_solo.methods.descriptions import METHODS
from studies.alarms.plan import PLAN
from studies.study import numbers, series

WARMUP = 3
CLASSES = {"textures": 12, "angles": 12, "digits": 10}
PREVALENCE = 0.1  # share of failed runs for which precision is stated
KINDS = {rule.kind for rule in RULES} - {WRONG_WAY}

Row = Mapping[str, str]


def gains(table: pd.DataFrame) -> pd.Series:
    """Return the final linear accuracy minus the untrained network's, in percentage points."""
    return numbers(table["linear_trained"]) - numbers(table["linear_untrained"])


def failed(table: pd.DataFrame) -> pd.Series:
    """Return which runs failed: their linear accuracy gained less than the plan's margin."""
    return gains(table) < PLAN["margin"]


def epochs_of(row: Row) -> pd.DataFrame:
    """Return a run's columns by epoch; epoch 0 is the untrained network."""
    names = PLAN["recorded"]["every epoch"]
    return pd.DataFrame({name: series(row[name]) for name in names})


def alarm(row: Row, rule: Mapping[str, Any]) -> float:
    """Return the epoch of a run's first alarm by one of the plan's rules; NaN if there is none."""
    epochs = epochs_of(row)
    if "below" in rule:
        return below(epochs, rule["below"], "above untrained" in rule)
    classes: int | None = CLASSES[row["data"]]
    if "without labels" in rule:
        epochs, classes = epochs.drop(columns=PLAN["labels"]), None
    kinds = KINDS if rule["kinds"] == "all" else set(rule["kinds"])
    measured = []
    for number, values in enumerate(epochs.to_dict("records")):
        measured.append(MeasuredEpoch.read(values, number, int(row["dimensions"]), classes))
        if kinds.intersection(kinds_of_collapse(measured, Bounds(warmup=WARMUP))):
            return number
    return math.nan


def below(epochs: pd.DataFrame, bounds: Mapping[str, float], above_untrained: bool) -> float:
    """Return the epoch after two measured epochs in a row in which a column is below its bound."""
    columns = epochs[list(bounds)]
    limits = pd.Series(bounds)
    if above_untrained:
        limits += columns.loc[0]
    measured = columns.loc[WARMUP + 1 :].dropna()
    low = (measured < limits).any(axis=1)
    twice = low & low.shift(fill_value=False)
    return float(twice.idxmax()) if twice.any() else math.nan


def judge(table: pd.DataFrame, rule: Mapping[str, Any]) -> pd.DataFrame:
    """Return the runs that a rule applies to, with their gain, label and first alarm.

    Diverged runs are left out; they stop with an error by themselves.
    """
    judged = table["diverged"] == ""
    if "softmax" in rule:
        judged &= table["method"].map(lambda name: METHODS[name].softmax)
    table = table[judged]
    alarms = [alarm(row, rule) for row in table.to_dict("records")]
    runs = table[["data", "setting", "method"]]
    return runs.assign(gain=gains(table), failed=failed(table), alarm=alarms)


def counts(runs: pd.DataFrame) -> pd.DataFrame:
    """Return for each setting the failed runs, those detected, healthy runs, and false alarms."""
    alarm = runs["alarm"].notna()
    failed = runs["failed"]
    columns = {
        "detected": alarm & failed,
        "collapses": failed,
        "false": alarm & ~failed,
        "healthy": ~failed,
    }
    return pd.DataFrame(columns).groupby(runs["setting"], sort=False).sum()


def shares(counts: pd.DataFrame) -> pd.DataFrame:
    """Return the rates in per cent.

    ``precision`` is the share of alarms that are right if one run in ten fails.
    """
    detected = counts["detected"] / counts["collapses"]
    false = counts["false"] / counts["healthy"]
    hits = PREVALENCE * detected
    precision = hits / (hits + (1 - PREVALENCE) * false)
    return 100 * pd.DataFrame({"detected": detected, "false": false, "precision": precision})


def intervals(counts: pd.DataFrame, repeats: int = 2000) -> pd.DataFrame:
    """Return 95 % intervals of the rates, bootstrapped over settings.

    Runs of one setting are alike, so whole settings are drawn with replacement.
    """
    dice = random.Random(0)
    n = len(counts)
    drawn = [dice.choices(range(n), k=n) for _ in range(repeats)]
    samples = pd.DataFrame(counts.to_numpy()[drawn].sum(1), columns=counts.columns)
    judged = samples[(samples["collapses"] > 0) & (samples["healthy"] > 0)]
    return shares(judged).quantile([0.025, 0.975], interpolation="higher")
