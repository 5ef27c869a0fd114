"""What it costs to choose a run without labels: regret, and Kendall's tau in groups of runs."""

import statistics
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from studies import markdown
from studies.alarms.judging import collapsed
from studies.alarms.measures import FEW, LOSS, MEASURES, score, tau
from studies.alarms.plan import CHOOSE, PLAN
from studies.table import Row

Array = npt.NDArray[np.float64]
Regrets = dict[
    tuple[str, str], Array
]  # by pool and data set: a row per way of choosing, a column per draw

POOLS, SEEDS, DATA = PLAN["pools"], PLAN["seeds"], PLAN["data"][:2]
DRAWS = 2000
RANDOM, DEFAULT = "a random run that has not failed", "always σ^-0.5"
WAYS = [RANDOM, DEFAULT, FEW, *(name for name in MEASURES if name != FEW)]


def regrets(rows: Sequence[Row], bootstrap: bool) -> Regrets:
    """Return the regret of every way of choosing, in draws of one seed per setting.

    ``bootstrap`` also draws the pool's settings with replacement, except the default, which stays.
    """
    dice = np.random.default_rng(0)
    result: Regrets = {}
    for pool, about in POOLS.items():
        names = sorted(about["among"], key=lambda name: name != about["default"])
        n = len(names)
        for data in DATA:
            runs = [row for name in names for row in runs_of(rows, data, [name])]
            settings = np.tile(np.arange(n), (DRAWS, 1))
            if bootstrap:
                settings[:, 1:] = dice.integers(n, size=(DRAWS, n - 1))
            result[pool, data] = _regret(
                runs, SEEDS * settings + dice.integers(SEEDS, size=(DRAWS, n))
            )
    return result


def _regret(runs: Sequence[Row], drawn: npt.NDArray[np.int64]) -> Array:
    """Return the regret of every way in every draw; a draw's first run has the default setting."""
    diverged = np.array([bool(row["diverged"]) for row in runs])
    accuracy = np.where(diverged, 0, [float(row["linear_trained"]) for row in runs])[drawn]
    alive = (~diverged & [not collapsed(row) for row in runs])[drawn]
    picked = [(accuracy * alive).sum(1) / alive.sum(1), accuracy[:, 0]]
    for name in WAYS[2:]:
        best = np.array([score(name, row) for row in runs])[drawn].argmax(1)
        picked.append(np.take_along_axis(accuracy, best[:, None], 1)[:, 0])
    return accuracy.max(1) - np.array(picked)


def runs_of(rows: Sequence[Row], data: str, settings: Sequence[str]) -> list[Row]:
    """Return the runs for choosing on a data set with these settings."""
    return [
        row
        for row in rows
        if row["part"] == CHOOSE and row["data"] == data and row["setting"] in settings
    ]


def regret_tables(rows: Sequence[Row]) -> str:
    """Return tables of mean regrets, their differences from the baselines, and regrets by pool."""
    exact, drawn = regrets(rows, bootstrap=False), regrets(rows, bootstrap=True)

    def mean(regret: Regrets, way: str, data: Sequence[str], loss: bool) -> Array:
        pools = [pool for pool in POOLS if not (loss and pool == "method")]
        row = WAYS.index(way)
        return np.mean([regret[pool, name][row] for pool in pools for name in data], axis=0)

    def cell(way: str, data: Sequence[str] = DATA, baseline: str = "") -> str:
        loss = way == LOSS
        values = [mean(regret, way, data, loss) for regret in (exact, drawn)]
        if baseline:
            values = [x - mean(r, baseline, data, loss) for x, r in zip(values, (exact, drawn))]
        low, high = np.quantile(values[1], [0.025, 0.975])
        sign = "+" if baseline else ""
        return f"{values[0].mean():{sign}.1f} ({low:{sign}.1f} to {high:{sign}.1f})"

    head = ["chosen by", *(f"regret on {data}" for data in DATA)]
    head += [f"minus that of {name}" for name in WAYS[:3]]
    table = [
        [way, *(cell(way, [data]) for data in DATA), *(cell(way, DATA, name) for name in WAYS[:3])]
        for way in WAYS
    ]
    pools = [
        [way, *(", ".join(f"{exact[pool, data][i].mean():.1f}" for data in DATA) for pool in POOLS)]
        for i, way in enumerate(WAYS)
    ]
    by_pool = markdown.table(["chosen by", *POOLS], pools)
    return f"{markdown.table(head, table)}\n\nBy pool, on {' and '.join(DATA)}:\n\n{by_pool}"


def tau_table(rows: Sequence[Row]) -> str:
    """Return Kendall's tau of each measure within settings, within SimSiam and across methods."""
    simsiam = [name for name in PLAN["choose"] if name.startswith("simsiam")]
    across = POOLS["method"]["among"]

    def cell(name: str, settings: Sequence[str], dead: bool) -> str:
        groups = [runs_of(rows, data, settings) for data in DATA]
        groups = [[row for row in group if dead or not collapsed(row)] for group in groups]
        return ", ".join(f"{tau(name, group):.2f}" for group in groups)

    def over_seeds(name: str) -> str:
        taus = (
            [tau(name, runs_of(rows, data, [setting])) for setting in PLAN["choose"]]
            for data in DATA
        )
        return ", ".join(f"{statistics.fmean(t for t in some if t == t):.2f}" for some in taus)

    columns = [(settings, dead) for settings in (simsiam, across) for dead in (True, False)]
    head = ["measure", "over seeds", "SimSiam", "SimSiam, no failed runs"]
    head += ["methods", "methods, no failed runs"]
    body = [[n, over_seeds(n), *(cell(n, *column) for column in columns)] for n in MEASURES]
    return markdown.table(head, body)
