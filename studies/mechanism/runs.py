"""Train one run of the trial, probe it, and return its row."""

import json
import math
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from benchmarks.timing import processor
from rdm_solo import runs
from studies import training
from studies.evidence.probe import FILE
from studies.evidence.runs import commit
from studies.mechanism.plan import DATA, OK, PLAN, SETTINGS, TUNING, Cell, Run, Stage, stages
from studies.table import Row

WARMUP = 6
LAST = {
    "erank": "erank/centred",
    "erank online": "erank/online",
    "erank target": "erank/target",
    "erank features": "erank/features_centred",
}
SPEEDS = range(7, 13)  # epochs over which the slope is averaged


def missing(rows: Sequence[Row]) -> list[Run]:
    """Return the missing runs of the first unfinished stage.

    The counted runs follow once all runs that choose its learning rates are there.
    """
    present = {(cell_of(row), int(row["seed"]), row["rate"]) for row in rows}
    for stage in stages().values():
        planned = [
            Run(cell, seed, rate)
            for seed in TUNING
            for cell in stage.cells
            for rate in rates_to_try(rows, cell, stage)
        ]
        if not (todo := [run for run in planned if run not in present]):
            chosen = {cell: rate_of(rows, cell) if stage.rates else "" for cell in stage.cells}
            planned = [Run(cell, seed, chosen[cell]) for seed in stage.seeds for cell in chosen]
            todo = [run for run in planned if run not in present]
        if todo:
            return todo
    return []


def rates_to_try(rows: Sequence[Row], cell: Cell, stage: Stage) -> list[str]:
    """Return the stage's rates, then the neighbours of the best one in ``stage.wider`` as well."""
    if not stage.wider or not set(stage.rates) <= _accuracies(rows, cell).keys():
        return stage.rates
    best = stage.wider.index(rate_of(rows, cell))
    return list(dict.fromkeys([*stage.rates, *stage.wider[max(0, best - 1) : best + 2]]))


def cell_of(row: Row) -> Cell:
    """Return the cell that a row belongs to."""
    return Cell(row["setting"], row["data"], int(row["epochs"]))


def rate_of(rows: Sequence[Row], cell: Cell) -> str:
    """Return the learning rate with the best mean accuracy over the tuning seeds."""
    accuracies = _accuracies(rows, cell)
    smallest_first = sorted(accuracies, key=float)  # of equal rates the first is chosen
    return max(smallest_first, key=lambda rate: accuracies[rate])


def _accuracies(rows: Sequence[Row], cell: Cell) -> dict[str, float]:
    """Return the mean accuracy of each rate that all tuning seeds have tried."""
    accuracies: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if int(row["seed"]) in TUNING and cell_of(row) == cell:
            accuracies[row["rate"]].append(float(row["linear"]) if row["status"] == OK else 0.0)
    return {
        rate: statistics.fmean(values)
        for rate, values in accuracies.items()
        if len(values) == len(TUNING)
    }


def options(run: Run) -> list[str]:
    """Return the options of ``rdm-solo train``."""
    (setting, data, epochs), seed, rate = run
    chosen = [*SETTINGS[setting], f"max_epochs={epochs}", f"seed={seed}"]
    if rate:
        chosen.append(f"optimizer.lr={rate}")
    if seed in TUNING:
        chosen.append("dataset.source._target_=studies.mechanism.data.held_out")
    if any(option.startswith("+callbacks.arm") for option in chosen):
        target = "+callbacks.arm._target_=studies.mechanism.controls.Arm"
        chosen += [target, f"+callbacks.arm.seed={seed}"]
    chosen += _callback("probe", "studies.evidence.probe.Probe", [0, epochs])
    if setting in PLAN["settings"]["rate"]:
        chosen += _callback("speeds", "rdm_solo.callbacks.Speeds", SPEEDS)
    return [*PLAN["shared"], *DATA[data], *chosen]


def _callback(name: str, target: str, epochs: Sequence[int]) -> list[str]:
    listed = ",".join(map(str, epochs))
    return [f"+callbacks.{name}._target_={target}", f"+callbacks.{name}.epochs=[{listed}]"]


def measure(cell: Cell, seed: int, rate: str) -> Row:
    """Return one row of the table; a diverged run has the accuracy of its untrained network."""
    about = cell._asdict() | {"seed": seed, "rate": rate, "status": OK, "code": commit()}
    about |= {"processor": processor()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        summary = training.train(options(Run(cell, seed, rate)), folder)
        about |= {"seconds": f"{summary['seconds']:.0f}", "versions": training.versions(summary)}
        probes = json.loads((folder / FILE).read_text())
        values = {"linear untrained": probes["0"]["linear"]}
        if diverged := training.divergence(summary):
            values |= {"linear": probes["0"]["linear"], "knn": probes["0"]["knn"], "erank": 1.0}
            about["status"] = diverged
        else:
            values |= {kind: probes[str(cell.epochs)][kind] for kind in ("linear", "knn")}
            metrics = runs.read_metrics(folder)
            values |= {name: float(metrics[column][-1]) for name, column in LAST.items()}
            epochs = zip(metrics["epoch"], metrics["erank/gap"])
            gaps = [gap for epoch, gap in epochs if epoch > WARMUP and math.isfinite(gap)]
            values["gap"] = statistics.fmean(gaps)
            if slopes := list(filter(math.isfinite, metrics["rate/slope"])):
                values["slope"] = statistics.fmean(slopes)
    return {name: str(value) for name, value in about.items()} | {
        name: f"{value:.7g}" for name, value in values.items()
    }
