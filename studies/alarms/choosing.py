"""What it costs to choose a run without labels: regret, and Kendall's tau in groups of runs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd  # type: ignore[import-untyped, unused-ignore]

from studies.alarms.judging import failed
from studies.alarms.plan import CHOOSE, DATA_TO_CHOOSE, PLAN
from studies.study import last_measured, numbers

DRAWS = 2000
RANDOM, DEFAULT = "a random run that has not failed", "always σ^-0.5"
FEW, LOSS = "kNN accuracy with 50 labels", "loss"
BASELINES = [RANDOM, DEFAULT, FEW]
WAYS = [*BASELINES, *(name for name in PLAN["measures"] if name != FEW)]

Array = npt.NDArray[np.float64]


def scores(table: pd.DataFrame) -> pd.DataFrame:
    """Return each run's last value of each measure, turned so that larger is better."""
    columns = PLAN["measures"]
    values = table[list(columns.values())].map(last_measured)
    values[PLAN["lower is better"]] *= -1
    distance = (values[PLAN["best near 1"]] - 1).abs()
    values[PLAN["best near 1"]] = -distance
    return values.set_axis(list(columns), axis=1)


def runs_of(table: pd.DataFrame, data: str, settings: Sequence[str]) -> pd.DataFrame:
    """Return the runs for choosing on a data set with these settings, one setting after another."""
    chosen = table[(table["part"] == CHOOSE) & (table["data"] == data)]
    groups = dict(list(chosen.groupby("setting")))
    return pd.concat([groups[setting] for setting in settings])


def regrets(table: pd.DataFrame, pools: Mapping[str, Any], bootstrap: bool) -> Array:
    """Return the regret by pool, data set, way of choosing, and draw of one seed per setting.

    ``bootstrap`` also draws the pool's settings with replacement, except the default, which stays.
    """
    dice = np.random.default_rng(0)
    by_pool = []
    for pool in pools.values():
        settings = [pool["default"]]
        settings += [setting for setting in pool["among"] if setting != pool["default"]]
        n = len(settings)
        by_data = []
        for data in DATA_TO_CHOOSE:
            drawn = np.tile(np.arange(n), (DRAWS, 1))
            if bootstrap:
                drawn[:, 1:] = dice.integers(n, size=(DRAWS, n - 1))
            seeds = dice.integers(PLAN["seeds"], size=(DRAWS, n))
            runs = runs_of(table, data, settings)
            by_data.append(_regret(runs, PLAN["seeds"] * drawn + seeds))
        by_pool.append(by_data)
    return np.array(by_pool)


def _regret(runs: pd.DataFrame, drawn: npt.NDArray[np.int64]) -> Array:
    """Return the regret of every way in every draw; a draw's first run has the default setting."""
    finished = runs["diverged"] == ""
    accuracy = numbers(runs["linear_trained"]).where(finished, 0).to_numpy()[drawn]
    alive = (finished & ~failed(runs)).to_numpy()[drawn]
    picked = {RANDOM: (accuracy * alive).sum(1) / alive.sum(1), DEFAULT: accuracy[:, 0]}
    draws = np.arange(len(drawn))
    for name, values in scores(runs).fillna(-np.inf).items():
        best = values.to_numpy()[drawn].argmax(1)
        picked[name] = accuracy[draws, best]
    return accuracy.max(1) - np.array([picked[way] for way in WAYS])


class Regrets:
    """Texts about the regrets, with intervals from a bootstrap of the settings."""

    def __init__(self, table: pd.DataFrame) -> None:
        self.exact = regrets(table, PLAN["pools"], bootstrap=False)
        self.drawn = regrets(table, PLAN["pools"], bootstrap=True)

    def mean(self, way: str, baseline: str = "", data: slice | int = slice(None)) -> str:
        """Return the mean regret over pools, minus that of a baseline, and its interval."""
        samples = []
        for regret in (self.exact, self.drawn):
            values = regret[:, data, WAYS.index(way)]
            if baseline:
                values = values - regret[:, data, WAYS.index(baseline)]
            if way == LOSS:  # the losses of different methods cannot be compared
                values = np.delete(values, list(PLAN["pools"]).index("method"), axis=0)
            samples.append(values.reshape(-1, DRAWS).mean(0))
        exact, drawn = samples
        sign = "+" if baseline else ""
        low, high = np.quantile(drawn, [0.025, 0.975])
        return f"{exact.mean():{sign}.1f} ({low:{sign}.1f} to {high:{sign}.1f})"

    def in_pools(self, way: str) -> list[str]:
        """Return for each pool the mean regret on each data set."""
        means = self.exact[:, :, WAYS.index(way)].mean(-1)
        return [", ".join(f"{mean:.1f}" for mean in by_data) for by_data in means]


def taus(table: pd.DataFrame) -> pd.Series:
    """Return Kendall's tau of each measure with linear accuracy, over the runs that have both."""
    return scores(table).corrwith(numbers(table["linear_trained"]), method="kendall")


def tau_within_settings(table: pd.DataFrame) -> pd.Series:
    """Return the mean over settings of Kendall's tau over a setting's seeds."""
    by_setting = [taus(runs) for _, runs in table.groupby("setting")]
    return pd.DataFrame(by_setting).mean()


def tau_of_choosing(table: pd.DataFrame) -> pd.DataFrame:
    """Return Kendall's tau over seeds, over SimSiam's settings and over methods."""
    chosen = table[table["part"] == CHOOSE]
    simsiam = chosen[chosen["setting"].str.startswith("simsiam")]
    methods = chosen[chosen["setting"].isin(PLAN["pools"]["method"]["among"])]
    groups = {
        "SimSiam": simsiam,
        "SimSiam, no failed runs": simsiam[~failed(simsiam)],
        "methods": methods,
        "methods, no failed runs": methods[~failed(methods)],
    }
    columns = by_data(groups, DATA_TO_CHOOSE, taus)
    columns.insert(0, "over seeds", by_data({"": chosen}, DATA_TO_CHOOSE, tau_within_settings))
    return columns


def tau_of_all_runs(table: pd.DataFrame) -> pd.DataFrame:
    """Return Kendall's tau over the runs of all methods."""
    runs = table[table["diverged"] == ""]
    groups = {"all runs": runs, "without failed runs": runs[~failed(runs)]}
    return by_data(groups, PLAN["data"], taus)


def by_data(
    groups: Mapping[str, pd.DataFrame], sets: Sequence[str], measure: Callable[..., pd.Series]
) -> pd.DataFrame:
    """Return what is measured in each group, as texts with a number for each data set."""
    columns = {}
    for name, runs in groups.items():
        numbers = [measure(runs[runs["data"] == data]) for data in sets]
        columns[name] = pd.DataFrame(numbers).map("{:.2f}".format).agg(", ".join)
    return pd.DataFrame(columns)
