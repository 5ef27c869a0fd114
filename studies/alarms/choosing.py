"""What it costs to choose a run without labels: regret, and Kendall's tau in groups of runs."""

import numpy as np
import pandas as pd

from studies.alarms.judging import failed
from studies.alarms.plan import CHOOSE, DATA_TO_CHOOSE, PLAN
from studies.study import last_measured, numbers

DRAWS = 2000
RANDOM, DEFAULT = "a random run that has not failed", "always σ^-0.5"
FEW, LOSS = "kNN accuracy with 50 labels", "loss"
BASELINES = [RANDOM, DEFAULT, FEW]
WAYS = list(dict.fromkeys([*BASELINES, *PLAN["measures"]]))


def scores(table: pd.DataFrame) -> pd.DataFrame:
    """Return each run's last value of each measure, turned so that larger is better."""
    columns = PLAN["measures"]
    values = table[list(columns.values())].map(last_measured)
    values[PLAN["lower is better"]] *= -1
    distance = (values[PLAN["best near 1"]] - 1).abs()
    values[PLAN["best near 1"]] = -distance
    return values.set_axis(list(columns), axis=1)


def regrets(table: pd.DataFrame, bootstrap: bool) -> pd.DataFrame:
    """Return the regret in each draw of one seed per setting, by way, data set and pool.

    ``bootstrap`` also draws the pool's settings with replacement, except the default, which stays.
    """
    dice = np.random.default_rng(0)
    chosen = table[table["part"] == CHOOSE].set_index(["data", "setting"]).sort_index()
    regrets = {}
    for name, pool in PLAN["pools"].items():
        default = pool["default"]
        settings = list(dict.fromkeys([default, *pool["among"]]))  # the default is the first
        n = len(settings)
        for data in DATA_TO_CHOOSE:
            drawn = np.tile(np.arange(n), (DRAWS, 1))
            if bootstrap:
                drawn[:, 1:] = dice.integers(n, size=(DRAWS, n - 1))
            seeds = dice.integers(PLAN["seeds"], size=(DRAWS, n))
            runs = chosen.loc[data].loc[settings]
            regrets[name, data] = regret(runs, PLAN["seeds"] * drawn + seeds)
    table = pd.concat(regrets, axis=1, names=["pool", "data", "way"])
    return table.reorder_levels(["way", "data", "pool"], axis=1)


def regret(runs: pd.DataFrame, drawn: np.ndarray) -> pd.DataFrame:
    """Return the regret of every way in every draw; a draw's first run has the default setting."""
    finished = runs["diverged"] == ""
    accuracies = numbers(runs["linear_trained"]).where(finished, 0)
    is_alive = finished & ~failed(runs)
    accuracy = accuracies.to_numpy()[drawn]
    alive = is_alive.to_numpy()[drawn]
    picked = {}
    picked[RANDOM] = (accuracy * alive).sum(1) / alive.sum(1)
    picked[DEFAULT] = accuracy[:, 0]
    for name, values in scores(runs).fillna(-np.inf).items():
        choice = values.to_numpy()[drawn].argmax(1)
        picked[name] = accuracy[range(DRAWS), choice]
    best = accuracy.max(1, keepdims=True)
    return best - pd.DataFrame(picked)[WAYS]


class Regrets:
    """Texts about the regrets, with intervals from a bootstrap of the settings."""

    def __init__(self, table: pd.DataFrame) -> None:
        self.exact = regrets(table, bootstrap=False)
        self.drawn = regrets(table, bootstrap=True)

    def mean(self, way: str, baseline: str = "", data: str | None = None) -> str:
        """Return the mean regret over pools, minus that of a baseline, and its interval."""
        means = []
        for regret in (self.exact, self.drawn):
            values = regret[way]
            if baseline:
                values = values - regret[baseline]
            if way == LOSS:  # the losses of different methods cannot be compared
                values = values.drop(columns="method", level="pool")
            if data:
                values = values[data]
            means.append(values.mean(axis=1))
        exact, drawn = means
        low, high = drawn.quantile([0.025, 0.975])
        sign = "+" if baseline else ""
        return f"{exact.mean():{sign}.1f} ({low:{sign}.1f} to {high:{sign}.1f})"

    def in_pools(self, way: str) -> list[str]:
        """Return for each pool the mean regret on each data set."""
        means = self.exact[way].mean().map("{:.1f}".format)
        return means.groupby("pool", sort=False).agg(", ".join).tolist()


def taus(runs: pd.DataFrame, *within: str) -> pd.Series:
    """Return for each measure Kendall's tau with linear accuracy on each data set, as a text.

    Tau is computed over all runs that have both or, with the name of a column in ``within``, as
    the mean over groups of such runs.
    """
    by_group = {}
    for group, members in runs.groupby(["data", *within]):
        accuracy = numbers(members["linear_trained"])
        by_group[group] = scores(members).corrwith(accuracy, method="kendall")
    means = pd.DataFrame(by_group).T.groupby(level=0).mean()
    in_order = means.reindex(PLAN["data"]).dropna(how="all")
    return in_order.map("{:.2f}".format).agg(", ".join)


def tau_of_choosing(table: pd.DataFrame) -> pd.DataFrame:
    """Return Kendall's tau over seeds, over SimSiam's settings and over methods."""
    chosen = table[table["part"] == CHOOSE]
    simsiam = chosen[chosen["setting"].str.startswith("simsiam")]
    methods = chosen[chosen["setting"].isin(PLAN["pools"]["method"]["among"])]
    columns = {
        "over seeds": taus(chosen, "setting"),
        "SimSiam": taus(simsiam),
        "SimSiam, no failed runs": taus(simsiam[~failed(simsiam)]),
        "methods": taus(methods),
        "methods, no failed runs": taus(methods[~failed(methods)]),
    }
    return pd.DataFrame(columns)


def tau_of_all_runs(table: pd.DataFrame) -> pd.DataFrame:
    """Return Kendall's tau over the runs of all methods."""
    runs = table[table["diverged"] == ""]
    columns = {"all runs": taus(runs), "without failed runs": taus(runs[~failed(runs)])}
    return pd.DataFrame(columns)
