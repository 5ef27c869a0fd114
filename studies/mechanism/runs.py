"""Train one run of the trial, probe it, and return its row."""

import json
from collections.abc import Sequence
from typing import Any

import pandas as pd

from studies import training
from studies.evidence.probe import FILE
from studies.mechanism.plan import CELL, DATA, PLAN, SETTINGS, TUNING, Run, stages
from studies.study import cells, numbers

WARMUP = 6
SPEEDS = "7,8,9,10,11,12"  # epochs over which the slope is averaged
ARM, PROBE, SLOPES = "+callbacks.arm", "+callbacks.probe", "+callbacks.speeds"


def planned(table: pd.DataFrame) -> list[Run]:
    """Return all runs that can be named already.

    The counted runs of a cell follow once all runs that choose its learning rate are there.
    """
    accuracies = tuned_accuracies(table)
    planned: list[Run] = []
    for stage, (trained, seeds) in stages().items():
        counted = []
        for cell in trained:
            tried = accuracies.get(cell, pd.Series(dtype=float))
            rates = rates_to_try(stage, tried)
            for seed in TUNING:
                planned += [Run(*cell, seed, rate) for rate in rates]
            if set(rates) <= set(tried.index):
                rate = best_rate(tried) if rates else ""
                counted += [Run(*cell, seed, rate) for seed in seeds]
        planned += counted
    return planned


def rates_to_try(stage: str, tried: pd.Series) -> list[str]:
    """Return the learning rates of a stage, if any.

    Once all of them are tried, the neighbours of the best one in the plan's ``wider`` follow.
    """
    rates = list(map(str, PLAN["rates"].get(stage, [])))
    if stage in PLAN["wider"] and set(rates) <= set(tried.index):
        wider = list(map(str, PLAN["wider"][stage]))
        best = wider.index(best_rate(tried))
        neighbours = wider[max(0, best - 1) : best + 2]
        rates = list(dict.fromkeys(rates + neighbours))
    return rates


def best_rate(tried: pd.Series) -> str:
    """Return the learning rate with the best accuracy; of equal ones the smallest."""
    # Means of a few images' accuracies differ by far more than the rounding of equal ones.
    return tried.round(4).sort_index(key=pd.to_numeric).idxmax()


def tuned_accuracies(table: pd.DataFrame) -> pd.Series:
    """Return the mean accuracy, by cell and rate, of the rates that all tuning seeds have tried."""
    tuning = with_seeds(table, TUNING).astype({"epochs": int})
    linear = numbers(tuning["linear"]).where(tuning["status"] == training.OK, 0.0)
    by_rate = linear.groupby([tuning[name] for name in (*CELL, "rate")])
    return by_rate.mean()[by_rate.count() == len(TUNING)]


def with_seeds(table: pd.DataFrame, seeds: Sequence[int]) -> pd.DataFrame:
    """Return the rows of the runs with these seeds."""
    return table[table["seed"].isin(list(map(str, seeds)))]


def options(run: Run) -> list[str]:
    """Return the options of ``rdm-solo train``."""
    options = [
        *PLAN["shared"],
        *DATA[run.data],
        *SETTINGS[run.setting],
        f"max_epochs={run.epochs}",
        f"seed={run.seed}",
        f"{PROBE}._target_=studies.evidence.probe.Probe",
        f"{PROBE}.epochs=[0,{run.epochs}]",
    ]
    if run.rate:
        options.append(f"optimizer.lr={run.rate}")
    if run.seed in TUNING:
        options.append("dataset.source._target_=studies.images.tuning")
    if any(option.startswith(ARM) for option in options):
        options.append(f"{ARM}._target_=studies.mechanism.controls.Arm")
        options.append(f"{ARM}.seed={run.seed}")
    if run.setting in PLAN["settings"]["rate"]:
        options.append(f"{SLOPES}._target_=studies.mechanism.speeds.Speeds")
        options.append(f"{SLOPES}.epochs=[{SPEEDS}]")
    return options


def measure(*key: Any) -> dict[str, str]:
    """Train a run and return the columns of the table.

    A diverged run has the accuracy of its untrained network.
    """
    planned = Run(*key)
    with training.trained(options(planned)) as (run, about):
        probes = json.loads((run.folder / FILE).read_text())
    untrained = probes["0"]
    status = training.divergence(run) or training.OK
    if status == training.OK:
        values = probes[str(planned.epochs)]
        for name, column in PLAN["last"].items():
            values[name] = run.last(column)
        epochs = pd.DataFrame(run.metrics)
        values["gap"] = epochs["erank/gap"][epochs["epoch"] > WARMUP].mean()
        values["slope"] = epochs["rate/slope"].mean()
    else:
        values = untrained | {"erank": 1.0}
    values["linear untrained"] = untrained["linear"]
    return {"status": status, **cells(values), **about}
