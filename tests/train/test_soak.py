"""Long runs: what a process holds at their end is what it held near their beginning."""

from __future__ import annotations

import csv
import math
import os
import statistics
import tempfile
from pathlib import Path

import pytest
from conftest import ROOT, command
from support.drills import record
from support.image_files import SIZE, write_tree
from support.small_runs import DRAWN

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc"),
]

COUNTED = ("descriptors", "threads", "temporary", "children")


def epochs_of(tmp_path: Path, *options: str) -> list[dict[str, float]]:
    """A run as a user starts it, with its own folder for temporary files; a row for each epoch."""
    places = (str(ROOT / "tests"), str(ROOT), os.environ.get("PYTHONPATH", ""))
    with tempfile.TemporaryDirectory() as temporary:  # short enough for the workers' sockets
        out = command(
            "rdm_solo.train",
            *options,
            "+callbacks.soak._target_=support.soak.Held",
            "hydra.run.dir=run",
            cwd=tmp_path,
            timeout=900,
            TMPDIR=temporary,
            PYTHONPATH=os.pathsep.join(filter(None, places)),
        )
    assert out.returncode == 0, out.stderr
    with (tmp_path / "run" / "soak.csv").open(newline="") as file:
        return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]


def drift(rows: list[dict[str, float]], name: str, early: slice, late: slice) -> tuple[float, ...]:
    """By how much the median of the late epochs lies above that of the early ones, relative to it;
    and the standard error of that, from the medians of ten pieces of either.

    Pieces of epochs that follow each other: what an epoch holds depends on the epoch before.
    """
    middles, errors = [], []
    for window in (early, late):
        values = [row[name] for row in rows[window]]
        size = len(values) // 10
        pieces = [statistics.median(values[i : i + size]) for i in range(0, 10 * size, size)]
        middles.append(statistics.median(values))
        errors.append(statistics.stdev(pieces) / math.sqrt(10))
    return middles[1] / middles[0] - 1, math.hypot(*errors) / middles[0]


def check_flat(name: str, rows: list[dict[str, float]], early: slice, late: slice) -> None:
    """Counts do not rise at all. Memory and time may by three standard errors and a hundredth, but
    by no more than a tenth."""
    flat, measured = [], ""
    for counted in COUNTED:
        before, after = (max(row[counted] for row in rows[window]) for window in (early, late))
        print(f"{counted}: {before:.0f} then {after:.0f}")
        flat.append(after <= before)
    for quantity in ("rss", "work"):
        rise, error = drift(rows, quantity, early, late)
        level = statistics.median(row[quantity] for row in rows[early])
        measured += f"; {quantity} {level:.6g}, later {rise:+.2%}, standard error {error:.2%}"
        flat.append(rise <= min(3 * error + 0.01, 0.1))
    record(f"quantities that stay flat over {name}", len(flat), sum(flat), measured)


def test_300_epochs_of_the_digits(tmp_path):
    """Spectra, kNN, pictures, TensorBoard and a checkpoint in every epoch."""
    options = ["filter=target_pow", "max_epochs=300", "knn.every_n_epochs=1", "logger=tensorboard"]
    rows = epochs_of(tmp_path, *options)
    assert len(rows) == 300
    check_flat("300 epochs", rows, slice(49, 150), slice(200, 300))


def test_100_epochs_from_files_with_two_workers(tmp_path):
    """Worker processes are started anew for validation and kNN in each epoch."""
    root = write_tree(tmp_path / "images", train=8, val=2)
    small = [option for option in DRAWN if not option.startswith(("dataset", "batch_size"))]
    options = ["dataset=folder", f"dataset.root={root}", f"dataset.image_size={SIZE}"]
    options += ["dataset.workers=2", "batch_size=12", "max_epochs=100", "knn.k=5"]
    rows = epochs_of(tmp_path, *small, *options, "logger=tensorboard")
    check_flat("100 epochs from files", rows, slice(19, 60), slice(60, 100))
