"""One run of the study: trained, measured, and turned into a row of the table."""

import json
import math

import pandas as pd

from rdm_solo.methods import solo_learn
from rdm_solo.methods.descriptions import METHODS
from studies import training
from studies.alarms.outcome import FILE
from studies.alarms.plan import PLAN, Planned, all_runs, draw
from studies.study import joined

OUTCOME = "+callbacks.outcome"


def planned(table: pd.DataFrame) -> list[tuple[str]]:
    """Return the names of the runs of the installed solo-learn's methods."""
    names = []
    for name, run in all_runs().items():
        if solo_learn.GENERATION in METHODS[run.method].versions:
            names.append((name,))
    return names


def measure(name: str) -> dict[str, str]:
    """Train a planned run and return the columns of the table."""
    run = all_runs()[name]
    options = draw(run)
    with training.trained([*options, *study_options(run)]) as (recorded, about):
        values = json.loads((recorded.folder / FILE).read_text())
    for column in PLAN["recorded"]["last"]:
        values[column] = recorded.last(column)
    row = {
        "part": run.part,
        "data": run.data,
        "setting": run.setting,
        "method": run.method,
        "options": " ".join(options[-len(run.about["draw"]) - 2 :]),
        "dimensions": str(recorded.spectra.get("dimensions", pd.Series([0])).max()),
        "diverged": training.divergence(recorded),
    }
    row |= {column: f"{value:.5g}" for column, value in values.items()}
    for column in PLAN["recorded"]["every epoch"]:
        untrained = recorded.untrained.get(column, math.nan)
        row[column] = joined([untrained, *recorded.metrics.get(column, ())])
    return row | about


def study_options(run: Planned) -> list[str]:
    """Return the options with which a run measures its outcome on held-out images."""
    options = [
        f"{OUTCOME}._target_=studies.alarms.outcome.Outcome",
        f"{OUTCOME}.data={run.data}",
        f"{OUTCOME}.held_out={PLAN['held out'][run.part]}",
        f"{OUTCOME}.batch_norm={run.about['batch_norm']}",
    ]
    if run.data == "digits":
        options.append("dataset.source._target_=studies.images.digits_to_train")
    return options
