"""Train one run of the study, probe it at a third and at the end, and return its row."""

import json
import math
from collections.abc import Mapping

import numpy as np
import pandas as pd
from torch import nn

from rdm_solo import data
from studies import training
from studies.evidence.plan import PIXELS, PLAN, ROWS, SEEDS, UNTRAINED
from studies.evidence.probe import FILE, accuracies
from studies.study import cells

WARMUP = 3
PROBED = (5, 15)  # epochs: a third of training and its end
GAP = 1e-3  # in effective rank; smaller gaps are rounding errors of equal branches
PROBE = "+callbacks.probe"


def planned(table: pd.DataFrame) -> list[tuple[str, int]]:
    """Return row and seed of all runs, seed after seed."""
    planned = [(PIXELS, SEEDS[0])]
    for seed in SEEDS:
        for row in (UNTRAINED, *ROWS):
            planned.append((row, seed))
    return planned


def measure(row: str, seed: int) -> dict[str, str]:
    """Train a run, or measure the pixels, and return the columns of the table."""
    ok = {"status": training.OK}
    if row == PIXELS:
        digits = data.digits()
        train = data.loader(digits, "train", 512)
        val = data.loader(digits, "val", 512)
        accuracy = accuracies(nn.Flatten(), train, val)
        return ok | cells(at("end", accuracy))
    with training.trained(options(row, seed)) as (run, about):
        if diverged := training.divergence(run):
            return {"status": f"failed: {diverged}", **about}
        *first, end = json.loads((run.folder / FILE).read_text()).values()
    values = at("end", end)
    if row != UNTRAINED:
        values |= at("third", *first)
        values |= spectra(run.metrics)
    return ok | cells(values) | about


def options(row: str, seed: int) -> list[str]:
    """Return the options of ``rdm-solo train``."""
    probe = f"{PROBE}._target_=studies.evidence.probe.Probe"
    common = [*PLAN["shared"], *ROWS.get(row, []), f"seed={seed}", probe]
    if row == UNTRAINED:
        return [*common, f"{PROBE}.epochs=[0]", "++trainer.limit_train_batches=1"]
    third, end = PROBED
    return [*common, f"{PROBE}.epochs=[{third},{end}]"]


def spectra(metrics: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return the table's values that come from a run's metrics.csv."""
    values = {}
    for name, column in PLAN["first"].items():
        values[name] = metrics[column][0]
    for name, column in PLAN["last"].items():
        values[name] = metrics[column][-1]
    for branch in ("online", "target"):
        erank = metrics[f"erank/{branch}"]
        values[f"erank {branch} rise"] = math.log(erank[-1] / erank[WARMUP])
    gap = metrics["erank/gap"] > GAP
    values["gap epochs"] = gap.sum()
    values["gap share"] = gap.mean()
    values["epochs"] = len(gap)
    return values


def at(when: str, accuracies: Mapping[str, float]) -> dict[str, float]:
    """Return the columns of accuracies that were measured at this time."""
    return {f"{kind} {when}": value for kind, value in accuracies.items()}
