"""All methods on the digits, side by side: ``python -m rdm_solo.evidence.methods``."""

import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from rdm_solo import cli, runs
from rdm_solo.bench.timing import processor
from rdm_solo.evidence import command, processes, table
from rdm_solo.evidence.methods.figure import draw
from rdm_solo.evidence.methods.page import page
from rdm_solo.methods import solo_learn
from rdm_solo.methods.descriptions import METHODS
from rdm_solo.runs.files import METRICS, write_whole
from rdm_solo.train import closing, training

SEEDS = (50, 51, 52, 53, 54)
# What all runs share; the rest is the digits' recipe of each method, as a user gets it.
SHARED = (
    *("dataset=digits", "trainer=cpu", "threads=1", "pictures.every_n_epochs=0"),
    "trainer.enable_progress_bar=false",
)
# Columns of metrics.csv that the table has, with a number for each epoch; empty: not measured.
MEASURED = (
    *("val/knn_acc1", "val/acc1", "erank/online", "erank/target", "erank/gap", "erank/centred"),
    *("feature/spread", "rankme/target", "lidar/target", "stable_rank/target"),
    *("participation_ratio/target", "uniformity/target", "positive_distance/target"),
)
ABOUT = ("method", "seed", "diverged", "dimensions", "warnings")
HEAD = (*ABOUT, *MEASURED, "seconds", "versions", "processor")

Row = Mapping[str, str]


def missing(rows: list[Row]) -> Iterator[tuple[str, int]]:
    """Method and seed of the runs that are not there, of the methods that are installed."""
    done = {(row["method"], int(row["seed"])) for row in rows}
    for seed in SEEDS:
        for name, described in METHODS.items():
            if solo_learn.GENERATION in described.versions and (name, seed) not in done:
                yield name, seed


def measure(name: str, seed: int) -> Row:
    """Train a method with a seed; its row."""
    cfg = cli.compose("config", [*SHARED, f"method={name}", f"seed={seed}"])
    diverged, began = "", time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        parts = training.build(cfg, Path(folder), [])
        try:
            training.fit(parts)
        except FloatingPointError as error:
            diverged = str(error)
        # A run that diverges in its first epoch has none.
        there = (Path(folder) / METRICS).exists()
        columns = runs.read_metrics(Path(folder)) if there else {}
    watch = next(c for c in parts.trainer.callbacks if type(c).__name__ == "CollapseWatch")
    return {
        "method": name,
        "seed": str(seed),
        "diverged": diverged,
        "dimensions": str(cfg.method.kwargs.proj_output_dim),
        "warnings": "; ".join(f"{w['kind']} in epoch {w['epoch']}" for w in watch.warnings),
        **{column: _joined(columns.get(column, np.empty(0))) for column in MEASURED},
        "seconds": f"{time.perf_counter() - began:.0f}",
        "versions": " ".join(f"{part}={version}" for part, version in closing.versions().items()),
        "processor": processor(),
    }


def _joined(values: np.ndarray) -> str:
    return " ".join(f"{value:.4g}" for value in values)


def add(path: Path, row: Row) -> None:
    """Write the table with one more row, sorted so that it does not depend on who was first."""
    order = list(METHODS)
    rows = sorted(
        [*table.rows(path), row], key=lambda r: (order.index(r["method"]), int(r["seed"]))
    )
    table.write(path, HEAD, rows)


def run_missing(path: Path, jobs: int, most: int | None) -> None:
    """The runs that the table lacks and solo-learn can train, ``jobs`` at a time."""
    tasks = list(missing(table.rows(path)))[:most]
    processes.run_all(measure, tasks, jobs, partial(add, path))


def write(rows: list[Row], out: Path) -> None:
    """The page and, beside it, its figure."""
    draw(rows, out.with_suffix(".png"))
    write_whole(out, page(rows))


def main() -> None:
    command.run(
        "methods",
        "Train every method that the installed solo-learn has on the embedded digits, with "
        f"{len(SEEDS)} seeds each, and write a page that has them side by side. Each run adds a "
        "row to the table when it ends, so that an interrupted command goes on where it stopped, "
        "and another version of solo-learn adds the methods that it has.",
        run_missing,
        write,
    )
