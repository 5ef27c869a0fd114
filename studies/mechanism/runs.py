"""Train one run of the trial, probe it, and return its row."""

import json
import math
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.timing import processor
from rdm_solo import runs
from studies import training
from studies.evidence.probe import FILE
from studies.evidence.runs import commit
from studies.mechanism.plan import DATA, EPOCHS, OK, PLAN, SEEDS, SETTINGS
from studies.table import Row

WARMUP = 6
LAST = {"erank": "erank/centred", "erank online": "erank/online", "erank target": "erank/target"}


def missing(rows: Sequence[Row]) -> list[tuple[str, str, int]]:
    """Return setting, data and seed of the runs that the table lacks, seed after seed."""
    planned = [(setting, data, seed) for seed in SEEDS for data in DATA for setting in SETTINGS]
    present = {(row["setting"], row["data"], int(row["seed"])) for row in rows}
    return [run for run in planned if run not in present]


def options(setting: str, data: str, seed: int) -> list[str]:
    """Return the options of ``rdm-solo train``."""
    chosen = SETTINGS[setting]
    if any(option.startswith("+callbacks.arm") for option in chosen):
        target = "+callbacks.arm._target_=studies.mechanism.controls.Arm"
        chosen = [*chosen, target, f"+callbacks.arm.seed={seed}"]
    probe = "+callbacks.probe._target_=studies.evidence.probe.Probe"
    epochs = f"+callbacks.probe.epochs=[0,{EPOCHS}]"
    return [*PLAN["shared"], *DATA[data], *chosen, f"seed={seed}", probe, epochs]


def measure(setting: str, data: str, seed: int) -> Row:
    """Return one row of the table; a diverged run has the accuracy of its untrained network."""
    about = {"setting": setting, "data": data, "seed": str(seed), "code": commit()}
    about |= {"processor": processor(), "status": OK}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        summary = training.train(options(setting, data, seed), folder)
        about |= {"seconds": f"{summary['seconds']:.0f}", "versions": training.versions(summary)}
        probes = json.loads((folder / FILE).read_text())
        values = {"linear untrained": probes["0"]["linear"]}
        if diverged := training.divergence(summary):
            values |= {"linear": probes["0"]["linear"], "knn": probes["0"]["knn"], "erank": 1.0}
            about["status"] = diverged
        else:
            values |= {kind: probes[str(EPOCHS)][kind] for kind in ("linear", "knn")}
            metrics = runs.read_metrics(folder)
            values |= {name: float(metrics[column][-1]) for name, column in LAST.items()}
            epochs = zip(metrics["epoch"], metrics["erank/gap"])
            gaps = [gap for epoch, gap in epochs if epoch > WARMUP and math.isfinite(gap)]
            values["gap"] = statistics.fmean(gaps)
    return about | {name: f"{value:.7g}" for name, value in values.items()}
