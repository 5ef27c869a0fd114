"""One run of the study: trained, measured, and turned into a row of the table."""

import json
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rdm_solo import runs
from rdm_solo.methods import solo_learn
from rdm_solo.methods.descriptions import METHODS
from rdm_solo.runs.files import write_atomically
from studies import training
from studies.alarms.outcome import FILE
from studies.alarms.plan import PLAN, Planned, draw, planned
from studies.table import Row, joined

# Columns of metrics.csv that the table has for every epoch from 0 on: rules may read them.
READ = (
    "feature/spread",
    "erank/centred",
    "erank/projection",
    "erank/online",
    "erank/gap",
    "erank/features",
    "erank/features_centred",
    "spread/features",
    "lidar/features",
    "train/loss",
    "train/loss_share",
    "val/acc1",
    "val/knn_acc1",
)
# Columns of metrics.csv of which the table has the last value, for choosing without labels.
LAST = (
    "erank/target",
    "rankme/target",
    "lidar/target",
    "stable_rank/target",
    "participation_ratio/target",
    "nesum/target",
    "alpha_req/target",
    "alpha_req_r2/target",
    "uniformity/target",
    "positive_distance/target",
    "epps_pulley/projection",
    "rankme/features",
    "stable_rank/features",
    "alpha_req/features",
    "alpha_req_r2/features",
)
OUTCOME = (
    "linear_untrained",
    "linear_trained",
    "knn_few",
    "clean_erank",
    "clean_erank/features_centred",
    "clean_rankme",
    "clean_stable_rank",
    "clean_spread",
    "clean_alpha_req",
    "clean_alpha_req_r2",
    "clean_idest",
    "clean_explained",
)
ABOUT = ("name", "part", "data", "setting", "method", "options", "dimensions", "diverged")
HEAD = (*ABOUT, *OUTCOME, *LAST, *READ, "seconds", "versions")
# A row's "versions" is a line number in this file, from 1 on.
VERSIONS = Path(__file__).with_name("versions.txt")


def missing(rows: Sequence[Row], parts: Sequence[str]) -> list[tuple[Planned]]:
    """Return the planned runs of these parts that are not in the table and can be trained here."""
    present = {row["name"] for row in rows}
    return [
        (run,)
        for part in parts
        for run in planned()
        if run.part == part
        and run.name not in present
        and solo_learn.GENERATION in METHODS[run.method].versions
    ]


def measure(run: Planned) -> Row:
    """Train a planned run and return its row."""
    options = draw(run)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        summary = training.train([*options, *_study_options(run)], folder)
        outcome: dict[str, float] = {}
        if (folder / FILE).exists():
            outcome = json.loads((folder / FILE).read_text())
        record = runs.load(folder)
        spectra, table, untrained = record.spectra, record.metrics, record.untrained
        dimensions = int(spectra["dimensions"].max()) if "dimensions" in spectra else 0
    values = {name: [untrained.get(name, math.nan), *table.get(name, ())] for name in READ}
    return {
        "name": run.name,
        "part": run.part,
        "data": run.data,
        "setting": run.setting,
        "method": run.method,
        "options": " ".join(options[-len(run.draws) - 2 :]),
        "dimensions": str(dimensions),
        "diverged": training.divergence(summary),
        **{name: _cell(outcome.get(name, math.nan)) for name in OUTCOME},
        **{name: _cell(record.last(name)) for name in LAST},
        **{name: joined(column) for name, column in values.items()},
        "seconds": _cell(summary["seconds"]),
        "versions": versions_line(training.versions(summary)),
    }


def versions_line(text: str) -> str:
    """Return the line number of this text in VERSIONS, and add a line if the text is new."""
    lines = list(dict.fromkeys([*VERSIONS.read_text().splitlines(), text]))
    write_atomically(VERSIONS, "\n".join(lines) + "\n")
    return str(lines.index(text) + 1)


def _cell(value: Any) -> str:
    return f"{float(value):.5g}"


def _study_options(run: Planned) -> list[str]:
    """Return the options of the study's data and of its callback."""
    return [
        "+callbacks.study._target_=studies.alarms.outcome.Outcome",
        f"+callbacks.study.data={run.data}",
        f"+callbacks.study.held_out={PLAN['held out'][run.part]}",
        f"+callbacks.study.batch_norm={str(run.batch_norm).lower()}",
        "dataset.source._target_=studies.alarms.data.source",
        f"+dataset.source.name={run.data}",
    ]
