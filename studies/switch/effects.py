"""The effects of the arms, and the answers of the plan's questions."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from studies.intervals import difference, equivalence, holm
from studies.study import distinct, series
from studies.switch.runs import ARMS, FIRST, LAST, PLAN, SHARES, UNSWITCHED, planned
from studies.training import OK

RUN = ["data", "setting", "arm", "seed"]
RANKS = list(PLAN["columns"])
ACCURACIES = ("knn", "linear")
EPOCHS = range(FIRST - 1, 31)
SWITCHED, RETURNED = FIRST + 4, LAST + 5  # five epochs after the switch, and after the way back
SIGNS = {"down": -1, "up": 1}
CHANCE = {"textures": 100 / 12, "icons": 100 / 16, "angles": 100 / 12, "digits": 10.0}


def complete(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of complete seeds, of the data sets that have enough of them."""
    size = sum(1 + len(arms) for arms in ARMS.values())
    counts = table.groupby(["data", "seed"])["arm"].count()
    seeds = {(unit.data, str(unit.seed)) for unit in planned()}
    finished = seeds & set(counts[counts == size].index)
    keys = pd.MultiIndex.from_frame(table[["data", "seed"]])
    rows = table[keys.isin(finished)]
    n = rows.groupby("data")["seed"].transform("nunique")
    return rows[n >= PLAN["first_seeds"]]


def values_of(table: pd.DataFrame) -> pd.DataFrame:
    """Return ranks and accuracies with a row per run and the columns (name, epoch)."""
    rows = []
    for row in table.to_dict("records"):
        values = {}
        for name in RANKS:
            for epoch, rank in zip(EPOCHS, ranks_of(row[name])):
                values[name, epoch] = rank
        for name in ACCURACIES:
            for epoch in PLAN["probes"]:
                values[name, epoch] = accuracy_of(row, f"{name} {epoch}")
        rows.append(values)
    index = pd.MultiIndex.from_frame(table[RUN])
    frame = pd.DataFrame(rows, index=index)
    frame.columns = pd.MultiIndex.from_tuples(frame.columns, names=["name", "epoch"])
    return frame.sort_index()


def ranks_of(cell: str) -> list[float]:
    """Return the rank after each epoch; after a divergence it is 1."""
    ranks = series(cell)
    lost = len(EPOCHS) - len(ranks)
    return ranks + [1.0] * lost


def accuracy_of(row: dict[str, str], column: str) -> float:
    """Return a run's accuracy: after a divergence that of chance, NaN if it was not measured."""
    if row[column]:
        return float(row[column])
    return math.nan if row["status"] == OK else CHANCE[row["data"]]


def data_sets(values: pd.DataFrame) -> list[str]:
    """Return the data sets that have complete seeds, in the plan's order."""
    present = distinct(values.index.to_frame()["data"])
    return [data for data in PLAN["data"] if data in present]


def differences(
    values: pd.DataFrame, setting: str, arm: str, name: str, against: str = UNSWITCHED
) -> pd.DataFrame:
    """Return the differences to another arm by (data, seed) and epoch; of ranks those of ln."""
    of_setting = values.xs(setting, level="setting")[name]
    if name in RANKS:
        of_setting = np.log(of_setting)
    return of_setting.xs(arm, level="arm") - of_setting.xs(against, level="arm")


def outcomes(differences: pd.DataFrame, kind: str) -> dict[str, pd.Series]:
    """Return the outcomes of a kind of the plan from the differences of an arm."""
    if kind == "switched":
        return {kind: differences[SWITCHED]}
    if kind == "returned":
        return {kind: differences[RETURNED] - differences[LAST]}
    return {kind: differences[LAST], "end": differences[EPOCHS[-1]]}


def tests_of(values: pd.DataFrame, question: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the tests of a question: each arm, outcome and data set."""
    against = question.get("against", UNSWITCHED)
    for label, expected in question["arms"].items():
        setting, _, arm = label.rpartition("/")
        for kind, names in question["outcomes"].items():
            for name in names:
                changes = differences(values, setting or question["setting"], arm, name, against)
                margin = PLAN["margin" if name in RANKS else "margin_accuracy"]
                for outcome, effect in outcomes(changes, kind).items():
                    about = {"arm": label, "outcome": outcome, "column": name}
                    for data in data_sets(values):
                        sample = effect.xs(data, level="data").tolist()
                        yield {**about, "data": data, **compared(sample, margin, expected)}


def compared(sample: list[float], margin: float, expected: str) -> dict[str, Any]:
    """Return difference, equivalence, and how many seeds have the expected sign."""
    return {
        **difference(sample),
        "p equal": equivalence(sample, margin),
        "as expected": int((np.sign(sample) == SIGNS[expected]).sum()),
        "n": len(sample),
        "sample": sample,
    }


def judged(values: pd.DataFrame, question: dict[str, Any]) -> pd.DataFrame:
    """Return the tests of a question with Holm's correction and what each test says."""
    tests = pd.DataFrame(tests_of(values, question))
    # Columns that are the same number for a method are tested once.
    tests = tests.drop_duplicates(["arm", "data", "outcome", "mean", "low"], ignore_index=True)
    tests["p"] = holm(tests["p"])
    tests["p equal"] = holm(tests["p equal"])
    tests["says"] = [verdict(test) for test in tests.to_dict("records")]
    return tests


def verdict(test: dict[str, Any]) -> str:
    """Return what a test says, by the plan's rule.

    >>> verdict({"mean": -0.3, "p": 0.01, "p equal": 0.9})
    'down'
    >>> verdict({"mean": -0.05, "p": 0.01, "p equal": 0.01})
    'down, less than the margin'
    """
    differs = test["p"] < PLAN["alpha"]
    equal = test["p equal"] < PLAN["alpha"]
    direction = "down" if test["mean"] < 0 else "up"
    if differs:
        return f"{direction}, less than the margin" if equal else direction
    return "no difference" if equal else "undecided"


def growth(values: pd.DataFrame) -> pd.Series:
    """Return ln of the projection's rank at epoch 15 minus epoch 10, of the arms of "power"."""
    projection = values.xs("power", level="setting")["projection"]
    return np.log(projection[SWITCHED] / projection[FIRST - 1])


def growth_on_gap(values: pd.DataFrame) -> pd.DataFrame:
    """Return gap and growth of each arm of the plan's ``dose``, by (data, arm, seed).

    The gap is ln of target over online rank, mean over the epochs 11 to 15.
    """
    gap = gaps(values).xs("power", level="setting")
    both = pd.DataFrame({"gap": gap, "growth": growth(values)})
    return both[both.index.isin(PLAN["dose"], level="arm")]


def gaps(values: pd.DataFrame) -> pd.Series:
    """Return ln of target over online rank, mean over the first five epochs of the switch."""
    window = list(range(FIRST, SWITCHED + 1))
    return np.log(values["target"][window] / values["online"][window]).mean(axis=1)


def lines(values: pd.DataFrame) -> pd.DataFrame:
    """Return slope and threshold of growth on the gap, by (data, seed)."""
    fits = {}
    for key, points in growth_on_gap(values).groupby(["data", "seed"]):
        slope, intercept = np.polyfit(points["gap"], points["growth"], 1)
        fits[key] = {"slope": slope, "threshold": -intercept / slope}
    frame = pd.DataFrame.from_dict(fits, orient="index")
    frame.index = pd.MultiIndex.from_tuples(list(fits), names=["data", "seed"])
    return frame


def dose(values: pd.DataFrame) -> pd.DataFrame:
    """Return the tests of slope and threshold on each data set."""
    tests = []
    fits = lines(values)
    for data in data_sets(values):
        of_data = fits.xs(data, level="data")
        for name, zero in (("slope", 0.0), ("threshold", 0.0), ("threshold", PLAN["threshold"])):
            test = difference(of_data[name].tolist(), zero)
            tests.append({"data": data, "quantity": name, **test, "n": len(of_data)})
    frame = pd.DataFrame(tests)
    frame["p"] = holm(frame["p"])
    return frame


def growth_on_share(values: pd.DataFrame) -> pd.DataFrame:
    """Return the slope of growth over the share of the rotation on each data set."""
    slopes: dict[str, list[float]] = {}
    by_seed = growth(values).unstack("arm")[[f"rotated {share:g}" for share in SHARES]]
    for (data, _), of_seed in by_seed.iterrows():
        slope, _ = np.polyfit(SHARES, of_seed, 1)
        slopes.setdefault(data, []).append(slope)
    tests = {data: difference(slopes[data]) for data in data_sets(values)}
    return pd.DataFrame.from_dict(tests, orient="index").rename_axis("data").reset_index()
