"""Which runs failed, and in which epoch the package's rules or simpler ones report a collapse."""

import random
from collections.abc import Mapping

import numpy as np
import pandas as pd

from rdm_solo.collapse.rules import RULES, WRONG_WAY, Bounds, MeasuredEpoch, kinds_of_collapse
from rdm_solo.methods.descriptions import METHODS
from studies.alarms.plan import PLAN
from studies.study import numbers, series

BOUNDS = Bounds(warmup=3)
CLASSES = {"textures": 12, "angles": 12, "digits": 10}
PREVALENCES = (1, 5, 10)  # per cent of runs that fail, for which the share of right alarms is given
KINDS = [rule.kind for rule in RULES if rule.kind != WRONG_WAY]


def gains(table: pd.DataFrame) -> pd.Series:
    """Return the final linear accuracy minus the untrained network's, in percentage points."""
    return numbers(table["linear_trained"]) - numbers(table["linear_untrained"])


def failed(table: pd.DataFrame) -> pd.Series:
    """Return which runs failed: their linear accuracy gained less than the plan's margin."""
    return gains(table) < PLAN["margin"]


def first_reports(epochs: pd.DataFrame, k: int, classes: int | None) -> pd.Series:
    """Return the first epoch in which the package reports each kind of collapse."""
    first = {}
    measured = []
    for number, values in enumerate(epochs.to_dict("records")):
        measured.append(MeasuredEpoch.read(values, number, k, classes))
        for kind in kinds_of_collapse(measured, BOUNDS):
            first.setdefault(kind, number)
    return pd.Series(first, dtype=float)


def first_below(epochs: pd.DataFrame, bounds: pd.Series) -> float:
    """Return the first epoch in which a column is below its bound for the second time in a row.

    Only measured epochs after the warm-up count.
    """
    measured = epochs[bounds.index][BOUNDS.warmup + 1 :].dropna()
    low = (measured < bounds).any(axis=1)
    return low[low & low.shift(fill_value=False)].index.min()


def first_alarms(run: Mapping[str, str]) -> dict[str, float]:
    """Return the epoch of a run's first alarm by each of the plan's rules; NaN: no alarm."""
    columns = {name: series(run[name]) for name in PLAN["recorded"]["every epoch"]}
    epochs = pd.DataFrame(columns)  # epoch 0 is the untrained network
    k = int(run["dimensions"])
    reports = first_reports(epochs, k, CLASSES[run["data"]])
    reports_without_labels = first_reports(epochs.drop(columns=PLAN["labels"]), k, None)
    first = {}
    for name, rule in PLAN["rules"].items():
        if "below" in rule:
            bounds = pd.Series(rule["below"])
            if "above untrained" in rule:
                bounds += epochs.loc[0, bounds.index]
            first[name] = first_below(epochs, bounds)
            continue
        reported = reports_without_labels if "without labels" in rule else reports
        kinds = KINDS if rule["kinds"] == "all" else rule["kinds"]
        first[name] = reported.reindex(kinds).min()
    return first


def judge(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return for each rule the runs that it applies to, with their gain, label and first alarm.

    Diverged runs are left out; they stop with an error by themselves.
    """
    table = table[table["diverged"] == ""]
    alarms = pd.DataFrame(map(first_alarms, table.to_dict("records")), table.index)
    runs = table[["data", "setting", "method"]]
    runs = runs.assign(gain=gains(table), failed=failed(table))
    judged = {}
    for name, rule in PLAN["rules"].items():
        judged[name] = runs.assign(alarm=alarms[name])
        if "softmax" in rule:
            has_softmax = runs["method"].map(lambda method: METHODS[method].softmax)
            judged[name] = judged[name][has_softmax]
    return judged


def counts(runs: pd.DataFrame, groups: pd.Series) -> pd.DataFrame:
    """Return for each group the failed runs, those detected, healthy runs, and false alarms."""
    alarm = runs["alarm"].notna()
    failed = runs["failed"]
    columns = {
        "detected": alarm & failed,
        "collapses": failed,
        "false": alarm & ~failed,
        "healthy": ~failed,
    }
    return pd.DataFrame(columns).groupby(groups, sort=False).sum()


def shares(counts: pd.DataFrame) -> pd.DataFrame:
    """Return the rates in per cent.

    ``right_10`` is the share of alarms that are right if 10 % of the runs fail.
    """
    detected = counts["detected"] / counts["collapses"]
    false = counts["false"] / counts["healthy"]
    rates = {"detected": detected, "false": false}
    for percent in PREVALENCES:
        hits = percent * detected
        false_alarms = (100 - percent) * false
        rates[f"right_{percent}"] = hits / (hits + false_alarms)
    return 100 * pd.DataFrame(rates)


def intervals(counts: pd.DataFrame) -> pd.DataFrame:
    """Return 95 % intervals of the rates, bootstrapped over settings.

    Runs of one setting are alike, so whole settings are drawn with replacement.
    """
    dice = random.Random(0)
    settings = range(len(counts))
    drawn = [dice.choices(settings, k=len(settings)) for _ in range(2000)]
    sums = counts.to_numpy()[np.array(drawn)].sum(1)
    samples = pd.DataFrame(sums, columns=counts.columns)
    return shares(samples).quantile([0.025, 0.975], interpolation="higher")
