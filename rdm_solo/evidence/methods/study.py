"""All methods on the digits, side by side: ``python -m rdm_solo.evidence.methods``."""

import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from rdm_solo import cli, runs
from rdm_solo.bench.timing import processor
from rdm_solo.evidence import command, processes, table
from rdm_solo.evidence.methods.figure import draw
from rdm_solo.evidence.methods.page import page
from rdm_solo.messages import UserError, listed
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
# Sections of the config that decide what is measured.
RECIPE = (
    *("p", "max_epochs", "batch_size", "backbone", "optimizer", "scheduler", "filter", "method"),
    *("threads", "dataset", "trainer", "diagnostics", "watch", "knn"),
)
ABOUT = ("method", "seed", "diverged", "dimensions", "warnings")
# `settings` is a hash of the method's recipe.
HEAD = (*ABOUT, *MEASURED, "seconds", "settings", "versions", "processor")

Row = Mapping[str, str]


def missing(rows: list[Row]) -> Iterator[tuple[str, int]]:
    """Method and seed of the runs that are not there, of the methods that are installed."""
    done = {(row["method"], int(row["seed"])) for row in rows}
    for seed in SEEDS:
        for name, described in METHODS.items():
            if solo_learn.GENERATION in described.versions and (name, seed) not in done:
                yield name, seed


def settings(name: str) -> str:
    """A hash of the method's recipe, to notice that it has changed."""
    recipe: Any = OmegaConf.to_container(_config(name, seed=0), resolve=True)
    return table.hashed({section: recipe[section] for section in RECIPE})


def _config(name: str, seed: int) -> Any:
    return cli.compose("config", [*SHARED, f"method={name}", f"seed={seed}"])


def rows_of(path: Path) -> list[Row]:
    """The table's rows; ValueError where one is of another recipe than its method's of today."""
    rows = table.rows(path)
    if rows and (lacks := set(HEAD) - rows[0].keys()):
        raise UserError(f"{path} lacks the columns {listed(sorted(lacks))}: give another --table")
    today = {name: settings(name) for name in {row["method"] for row in rows}}
    for row in rows:
        if row["settings"] != today[row["method"]]:
            raise UserError(
                f"{path}: {row['method']}, seed {row['seed']}, is not of the method's recipe of "
                "today: remove such rows, or give another --table"
            )
    return rows


def measure(name: str, seed: int) -> Row:
    """Train a method with a seed; its row."""
    cfg = _config(name, seed)
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
        "settings": settings(name),
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
    tasks = list(missing(rows_of(path)))[:most]
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
