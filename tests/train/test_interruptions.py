"""Drill: runs that a signal stops at random moments, as real processes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT, command
from support.drills import draws, record, tries
from support.small_runs import DRAWN, rows, run

from rdm_solo.callbacks.knn import WeightedKNN
from rdm_solo.filters import SpectralFilter
from rdm_solo.runs import checkpoints, metrics_file, spectra_files

EPOCHS = 12
OPTIONS = [*DRAWN, f"max_epochs={EPOCHS}", "scheduler.warmup_epochs=1", "trainer=cpu"]
SIGNALS = "SIGINT or SIGTERM to a run at a random moment"


def start(folder: Path) -> subprocess.Popen[str]:
    folder.mkdir()
    path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH", "")) if p)
    return subprocess.Popen(
        [sys.executable, "-m", "rdm_solo.train", *OPTIONS, "hydra.run.dir=run"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_a_moment(process: subprocess.Popen[str], draw: random.Random) -> None:
    """Until a random line of a whole run is said, and a little longer."""
    for _ in range(draw.randrange(EPOCHS + 2)):
        process.stdout.readline()
    time.sleep(draw.random() / 2)


def whole(folder: Path) -> bool:
    """Whether every file can be read, and no epoch that was saved lacks its row."""
    if not folder.exists():
        return True
    for path in folder.rglob("*.json"):
        if path.name != "owner.json" or path.stat().st_size:
            json.loads(path.read_bytes())
    saved = [checkpoints.read(path)["epoch"] + 1 for path in folder.rglob("*.ckpt")]
    table = rows(folder) if (folder / "metrics.csv").exists() else []
    return [row["epoch"] for row in table] == [*range(1, len(table) + 1)] and (
        max(saved, default=0) <= len(table)
    )


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> bytes:
    folder = tmp_path_factory.mktemp("uninterrupted")
    run(folder, *OPTIONS)
    return (folder / "metrics.csv").read_bytes()


def goes_on(folder: Path) -> bytes:
    """The table that the run has in the end, resumed or, where nothing was saved, begun again."""
    again = [*OPTIONS, "hydra.run.dir=run", "overwrite=true"]
    saved = list((folder / "run").rglob("*.ckpt"))
    out = command("rdm_solo.train", *(["resume=run"] if saved else again), cwd=folder)
    if "has finished" not in out.stderr:
        assert (out.returncode, out.stderr) == (0, ""), out.stderr
    return (folder / "run" / "metrics.csv").read_bytes()


@pytest.mark.long
@pytest.mark.process
def test_a_signal_ends_a_run_in_order(uninterrupted, tmp_path):
    draw, number, survived = draws(SIGNALS), tries(3, 12), 0
    for attempt in range(number):
        folder, sent = tmp_path / str(attempt), draw.choice([signal.SIGINT, signal.SIGTERM])
        process = start(folder)
        if draw.random() < 0.4:
            time.sleep(draw.uniform(1, 6))  # imports, checks, models
        else:
            wait_for_a_moment(process, draw)
        process.send_signal(sent)
        began = time.monotonic()
        said, error = process.communicate(timeout=120)
        fine = [
            (process.returncode == 128 + sent and said != "")
            or (process.returncode == 0 and "all pictures" in said),
            error == "",
            time.monotonic() - began < 30,
            whole(folder / "run"),
            goes_on(folder) == uninterrupted,
        ]
        print(attempt, sent.name, process.returncode, fine, said[-200:], error[-300:])
        survived += all(fine)
    record(SIGNALS, number, survived)


# Where a signal is sent to the process itself: the function, its call, and whether behind it.
MOMENTS = [
    *((metrics_file, "write", call, behind) for call in (1, 2) for behind in (False, True)),
    *((checkpoints, "write", call, behind) for call in (1, 2) for behind in (False, True)),
    *((os, "replace", call, behind) for call in (3, 8) for behind in (False, True)),
    (os, "fsync", 9, False),
    (os, "link", 1, True),
    (spectra_files, "write", 2, False),
    (WeightedKNN, "on_validation_epoch_end", 1, False),
    (WeightedKNN, "on_validation_epoch_end", 2, True),
    (SpectralFilter, "forward", 3, False),
    (SpectralFilter, "forward", 20, True),
]


def interrupted(original, wanted: int, behind: bool, sent: signal.Signals):
    """The function, in whose call of that number the process gets the signal; behind it, twice."""
    calls = 0

    def call(*arguments, **more):
        nonlocal calls
        calls += 1
        now = calls == wanted
        if now and not behind:
            os.kill(os.getpid(), sent)
        made = original(*arguments, **more)
        if now and behind:
            os.kill(os.getpid(), sent)
            os.kill(os.getpid(), sent)
        return made

    return call


@pytest.mark.process
def test_a_signal_that_a_library_turns_into_an_error_is_still_a_signal(
    typed, tmp_path, monkeypatch
):
    def measure(self, trainer, pl_module):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt as error:
            raise RuntimeError("unexpected pos 28992 vs 28944") from error

    monkeypatch.setattr(WeightedKNN, "on_validation_epoch_end", measure)
    out = typed("rdm_solo.train", *OPTIONS, "hydra.run.dir=run", cwd=tmp_path)
    assert (out.returncode, out.stderr) == (143, "")
    assert "SIGTERM: the run stops (RuntimeError: unexpected pos 28992 vs 28944)\n" in out.stdout
    assert list((tmp_path / "run").rglob("failed.txt")) == []


@pytest.mark.long
def test_a_signal_at_a_forced_moment_changes_no_result(typed, tmp_path, monkeypatch):
    """Between row and checkpoint, in the middle of a write, of the neighbours, of a step; twice."""
    options = [*DRAWN, "filter=target_pow", "p=-0.5", "max_epochs=3"]
    options += ["scheduler.warmup_epochs=1", "trainer=cpu"]
    assert typed("rdm_solo.train", *options, "hydra.run.dir=whole", cwd=tmp_path).returncode == 0
    expected, survived, tried = (tmp_path / "whole" / "metrics.csv").read_bytes(), 0, 0
    said = []
    for number, (owner, name, call, behind) in enumerate(MOMENTS):
        for sent in (signal.SIGTERM, signal.SIGINT):
            tried += 1
            folder = tmp_path / f"{number}_{sent.name}"
            interrupting = interrupted(getattr(owner, name), call, behind, sent)
            with monkeypatch.context() as patch:
                patch.setattr(owner, name, interrupting)
                out = typed("rdm_solo.train", *options, f"hydra.run.dir={folder}", cwd=tmp_path)
            status = out.returncode
            if list(folder.rglob("*.ckpt")):
                out = typed("rdm_solo.train", f"resume={folder}", cwd=tmp_path)
            else:
                again = [f"hydra.run.dir={folder}", "overwrite=true"]
                out = typed("rdm_solo.train", *options, *again, cwd=tmp_path)
            table = (folder / "metrics.csv").read_bytes()
            fine = [status == 128 + sent, out.returncode == 0, table == expected]
            said.append(f"{owner.__name__} {name} {call} {behind} {sent.name} {fine} {out.stderr}")
            survived += all(fine)
    print(*said, sep="\n")
    record("a signal at a forced moment of a run, which then goes on", tried, survived)
