"""Train one run of the study, probe it at a third and at the end, and return its row."""

import json
import math
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from torch import nn

from benchmarks.timing import processor
from rdm_solo import data, runs
from studies import training
from studies.evidence.plan import OK, PIXELS, ROWS, SEEDS, STUDY, UNTRAINED
from studies.evidence.probe import FILE, accuracies
from studies.table import Row

WARMUP = 3
PROBED = (5, 15)  # epochs: a third of training and its end
GAP = 1e-3  # in effective rank; smaller gaps are rounding errors of equal branches

# Columns of the table that are the last value of a column of metrics.csv.
LAST = {
    "variance": "feature/variance",
    "erank projection last": "erank/projection",
    "alignment": "alignment/online_target",
    "alignment weighted": "alignment/online_target_weighted",
    "alignment positive": "alignment/target_positive",
    "monotonicity": "filter/monotonicity",
    "monotonicity directional": "filter/monotonicity_directional",
}
FIRST = {"variance first": "feature/variance", "erank projection first": "erank/projection"}


def missing(rows: Sequence[Row]) -> list[tuple[str, int]]:
    """Return row and seed of the runs that the table lacks, seed after seed."""
    planned = [(PIXELS, SEEDS[0]), *((row, s) for s in SEEDS for row in (UNTRAINED, *ROWS))]
    present = {(row["row"], int(row["seed"])) for row in rows}
    return [run for run in planned if run not in present]


def measure(row: str, seed: int) -> Row:
    """Return one row of the table."""
    about = {"row": row, "seed": str(seed), "status": OK, "code": commit()}
    about["processor"] = processor()
    if row == PIXELS:
        values = {f"{kind} end": value for kind, value in pixels().items()}
        return about | formatted(values)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        summary = training.train(options(row, seed), folder)
        about["seconds"] = f"{summary['seconds']:.0f}"
        versions = summary["versions"].items()
        about["versions"] = ", ".join(f"{name} {version}" for name, version in versions)
        if diverged := training.divergence(summary):
            return about | {"status": f"failed: {diverged}"}
        probes = list(json.loads((folder / FILE).read_text()).values())
        values = {f"{kind} end": value for kind, value in probes[-1].items()}
        if row != UNTRAINED:
            values |= {f"{kind} third": value for kind, value in probes[0].items()}
            values |= spectra(folder)
        return about | formatted(values)


def options(row: str, seed: int) -> list[str]:
    """Return the options of ``rdm-solo train``."""
    epochs = [0] if row == UNTRAINED else [*PROBED]
    probe = [
        "+callbacks.probe._target_=studies.evidence.probe.Probe",
        f"+callbacks.probe.epochs={epochs}".replace(" ", ""),
    ]
    if row == UNTRAINED:
        probe.append("++trainer.limit_train_batches=1")
    return [*STUDY["shared"], *ROWS.get(row, []), f"seed={seed}", *probe]


def formatted(values: dict[str, float]) -> dict[str, str]:
    """Return the values as cells; fail if one is not finite, because means over seeds need it."""
    for name, value in values.items():
        if not math.isfinite(value):
            raise training.RunFailed(f"{name} is {value}")
    return {name: f"{value:.7g}" for name, value in values.items()}


def pixels() -> dict[str, float]:
    """Return the accuracies of raw pixels."""
    dataset = data.digits()
    return accuracies(nn.Flatten(), *(data.loader(dataset, part, 512) for part in ("train", "val")))


def spectra(folder: Path) -> dict[str, float]:
    """Return the table's values that come from a run's metrics.csv."""
    metrics = runs.read_metrics(folder)
    values = {name: metrics[column][-1] for name, column in LAST.items()}
    values |= {name: metrics[column][0] for name, column in FIRST.items()}
    for branch in ("online", "target"):
        erank = metrics[f"erank/{branch}"]
        values[f"erank {branch} first"], values[f"erank {branch} last"] = erank[0], erank[-1]
        values[f"erank {branch} rise"] = math.log(erank[-1] / erank[WARMUP])
    gap = metrics["erank/gap"] > GAP
    values |= {"gap epochs": gap.sum(), "gap share": gap.mean(), "epochs": len(gap)}
    return {name: float(value) for name, value in values.items()}


def commit() -> str:
    """Return the commit of this clone; empty without git."""
    if not (training.ROOT / ".git").exists() or not shutil.which("git"):
        return ""
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    done = subprocess.run(describe, cwd=training.ROOT, capture_output=True, text=True)
    return done.stdout.strip()
