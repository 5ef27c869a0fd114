"""One run of the study: trained, measured, and turned into a row of the table."""

import json
import math
from pathlib import Path

import pandas as pd  # type: ignore[import-untyped, unused-ignore]

from rdm_solo.methods import solo_learn
from rdm_solo.methods.descriptions import METHODS
from studies import training
from studies.alarms.outcome import FILE
from studies.alarms.plan import PLAN, Planned, all_runs, draw
from studies.study import joined

STUDY, SOURCE = "+callbacks.study", "dataset.source"
# A row's "versions" is the number of a line in this file, from 1 on.
VERSIONS = Path(__file__).with_name("versions.txt")


def planned(table: pd.DataFrame) -> list[Planned]:
    """Return the planned runs of the installed solo-learn's methods."""
    return [run for run in all_runs() if solo_learn.GENERATION in METHODS[run.method].versions]


def measure(*planned: str) -> dict[str, str]:
    """Train a planned run and return its row."""
    run = Planned(*planned)
    options = draw(run)
    study_options = [
        f"{STUDY}._target_=studies.alarms.outcome.Outcome",
        f"{STUDY}.data={run.data}",
        f"{STUDY}.held_out={PLAN['held out'][run.part]}",
        f"{STUDY}.batch_norm={run.about.get('batch_norm', True)}",
        f"{SOURCE}._target_=studies.alarms.data.source",
        f"+{SOURCE}.name={run.data}",
    ]
    with training.trained([*options, *study_options]) as (recorded, about):
        outcome = recorded.folder / FILE
        values: dict[str, float] = {}
        if outcome.exists():  # a run can diverge before it is measured
            values = json.loads(outcome.read_text())
    values |= {column: recorded.last(column) for column in PLAN["recorded"]["last"]}
    row = {
        "name": run.name,
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
    return row | about | {"versions": versions_line(about["versions"])}


def versions_line(text: str) -> str:
    """Return the number of the line with these versions, which is added if it is new."""
    lines = VERSIONS.read_text().splitlines()
    if text not in lines:
        lines.append(text)
        VERSIONS.write_text("\n".join(lines) + "\n")
    return str(lines.index(text) + 1)
