"""One run of the study: its settings drawn, trained, labelled and measured; a row of the table."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rdm_solo import runs
from rdm_solo.methods import solo_learn
from rdm_solo.methods.descriptions import METHODS
from rdm_solo.runs import spectra_files
from rdm_solo.runs.files import METRICS
from studies import training
from studies.collapse.changes import FILE
from studies.collapse.plan import PLAN, READ, Drawn, Planned, draw, planned
from studies.table import Row, joined


def missing(rows: Sequence[Row]) -> list[tuple[Planned]]:
    """Return the planned runs that the table lacks and the installed solo-learn can train."""
    present = {row["name"] for row in rows}
    return [
        (run,)
        for run in planned()
        if run.name not in present and solo_learn.GENERATION in METHODS[run.method].versions
    ]


def measure(run: Planned) -> Row:
    """Train a planned run and return its row."""
    drawn = draw(run)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        summary = training.train([*drawn.options, *_changes(run, drawn)], folder)
        labels: dict[str, list[float]] = json.loads((folder / FILE).read_text())
        dimensions, measured = _measured(folder)
    return {
        "name": run.name,
        "part": run.part,
        "data": run.data,
        "setting": run.setting,
        "method": run.method,
        "options": " ".join(drawn.options[len(PLAN["shared"]) :]),
        "distinct": str(drawn.distinct),
        "batch_norm": str(drawn.batch_norm).lower(),
        "dimensions": str(dimensions),
        "diverged": training.divergence(summary),
        **{name: joined(values) for name, values in {**labels, **measured}.items()},
        "versions": training.versions(summary),
    }


def _changes(run: Planned, drawn: Drawn) -> list[str]:
    """Return the options of the callback that makes a run one of the study."""
    options = {
        "_target_": "studies.collapse.changes.Changes",
        "data": run.data,
        "seed": drawn.seed,
        "distinct": drawn.distinct,
        "batch_norm": str(drawn.batch_norm).lower(),
    }
    return [f"+callbacks.study.{name}={value}" for name, value in options.items()]


def _measured(folder: Path) -> tuple[int, dict[str, list[float]]]:
    """Return the outputs' dimensions and what the warnings read of each epoch."""
    if not (folder / METRICS).exists():
        return 0, {}
    table = runs.read_metrics(folder)
    measured = {name: table[column].tolist() for name, column in READ.items()}
    measured["gap"] = np.log(table["erank/target"] / table["erank/online"]).tolist()
    return int(spectra_files.read(folder)[0]["dimensions"].max()), measured
