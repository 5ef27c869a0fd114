"""Train one run of the study, a method with its recipe for the digits, and return its row."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from omegaconf import OmegaConf

from benchmarks.timing import processor
from rdm_solo import runs
from rdm_solo.methods import solo_learn
from rdm_solo.methods.descriptions import METHODS
from rdm_solo.runs.files import METRICS
from studies import training
from studies.table import Row, joined

SEEDS = (50, 51, 52, 53, 54)
# Options of all runs; all others are the defaults of each method on the digits.
SHARED = (
    "dataset=digits",
    "trainer=cpu",
    "threads=1",
    "pictures.every_n_epochs=0",
    "trainer.enable_progress_bar=false",
)
# Columns of metrics.csv that the table has, with a number per epoch; empty if not measured.
MEASURED = (
    "val/knn_acc1",
    "val/acc1",
    "erank/online",
    "erank/target",
    "erank/gap",
    "erank/centred",
    "feature/spread",
    "rankme/target",
    "lidar/target",
    "stable_rank/target",
    "participation_ratio/target",
    "uniformity/target",
    "positive_distance/target",
)
ABOUT = ("method", "seed", "diverged", "dimensions", "warnings")
HEAD = (*ABOUT, *MEASURED, "seconds", "versions", "processor")


def missing(rows: Sequence[Row]) -> list[tuple[str, int]]:
    """Return method and seed of the runs that the table lacks, for the installed methods."""
    present = {(row["method"], int(row["seed"])) for row in rows}
    installed = [n for n, m in METHODS.items() if solo_learn.GENERATION in m.versions]
    planned = [(name, seed) for seed in SEEDS for name in installed]
    return [run for run in planned if run not in present]


def measure(name: str, seed: int) -> Row:
    """Train a method with a seed and return its row."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        summary = training.train([*SHARED, f"method={name}", f"seed={seed}"], folder)
        cfg = OmegaConf.load(folder / ".hydra" / "config.yaml")
        # A run that diverges in its first epoch has no metrics.
        metrics = runs.read_metrics(folder) if (folder / METRICS).exists() else {}
    return {
        "method": name,
        "seed": str(seed),
        "diverged": training.divergence(summary),
        "dimensions": str(cfg.method.kwargs.proj_output_dim),
        "warnings": "; ".join(f"{w['kind']} in epoch {w['epoch']}" for w in summary["warnings"]),
        **{column: joined(metrics[column]) for column in MEASURED if len(metrics.get(column, ()))},
        "seconds": f"{summary['seconds']:.0f}",
        "versions": training.versions(summary),
        "processor": processor(),
    }
