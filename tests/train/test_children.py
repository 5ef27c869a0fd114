"""Runs of several processes that fail: who says so, and who is waited for."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import ROOT, command
from support.drills import record
from support.image_files import epoch_of, loader, spoil, write_tree
from support.small_runs import QUICK, SMALL, rows
from support.world import processes

from rdm_solo.lightning import pl
from rdm_solo.runs import failures
from rdm_solo.runs.files import FAILED
from rdm_solo.train import training
from rdm_solo.train.child_processes import Children

PATH = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH", "")) if p)


def watch(how: str, grace: float, seconds: float, out: Path) -> None:
    """The first process of a run, whose child fails; its status is 12 where it stays alive."""
    os.dup2(os.open(out, os.O_WRONLY | os.O_CREAT), 2)
    launchers = sys.modules[pl.strategies.launchers.subprocess_script.__name__]
    child = subprocess.Popen([sys.executable, "-S", "-c", "raise SystemExit(2)"])
    child.wait()
    launcher = SimpleNamespace(procs=[child])
    launchers._launch_process_observer(launcher.procs)
    watched = Children(grace)
    trainer = SimpleNamespace(strategy=SimpleNamespace(launcher=launcher))
    if how == "ours":
        watched.setup(trainer, None, "fit")
        assert launcher.procs == [child]
    elif how == "failed before it was set up":
        watched.let_go(trainer, failed=True)
    time.sleep(seconds)
    watched.let_go(trainer, failed=True)
    os._exit(10 + child.returncode)


@pytest.mark.process
def test_a_failed_child_leaves_time_to_say_so(tmp_path):
    """Lightning's own thread would end the first process, and a sweep with it."""
    # With the seconds of grace, and those in which it should be killed, or stay alive: Lightning
    # looks at the children every five seconds.
    cases = [
        ("lightning's", 60, 60),
        ("ours", 60, 6),
        ("ours", 2, 60),
        ("failed before it was set up", 60, 6),
    ]
    fathers = [
        processes.Process(target=watch, args=(*case, tmp_path / str(number)))
        for number, case in enumerate(cases)
    ]
    for father in fathers:
        father.start()
    for father in fathers:
        father.join(300)
    killed, alive = -signal.SIGKILL, 12
    assert [father.exitcode for father in fathers] == [killed, alive, killed, alive]
    said = [(tmp_path / number).read_text() for number in "0123"]
    assert said[2].endswith("another process of this run has failed, and this one hangs.\n")
    assert not any("hangs" in said[number] for number in (0, 1, 3))


@pytest.mark.long
@pytest.mark.process
def test_what_one_process_alone_has_met_is_said_once(tmp_path):
    write_tree(tmp_path / "data", train=12)
    batches = loader(tmp_path / "data", batch_size=8)
    path = batches.images.path(int(epoch_of(batches, rank=1, world=2)[0][0][0]))
    spoil(path, "truncated")
    options = [*QUICK, *(option for option in SMALL if not option.startswith("dataset"))]
    options += ["dataset=folder", f"dataset.root={tmp_path / 'data'}", "dataset.image_size=8"]
    options += ["trainer=ddp", "trainer.devices=2", "batch_size=8", "hydra.run.dir=run"]
    out = command("rdm_solo.train", *options, cwd=tmp_path, PYTHONWARNINGS="")
    assert out.returncode == 2, (out.stdout + out.stderr)[-3000:]
    (line,) = out.stderr.splitlines()
    assert line.startswith(f"error: {path} cannot be decoded")
    assert (tmp_path / "run" / FAILED).read_text() == f"{line.removeprefix('error: ')}\n"


def children_of(process: int) -> list[int]:
    found = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [int(p) for p in found if b"rdm_solo" in Path(f"/proc/{p}/cmdline").read_bytes()]


@pytest.mark.long
@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="looks for children in /proc")
def test_a_signal_to_one_process_ends_the_run_in_order(tmp_path):
    """To either of two, while they train: the files so far, the sentence, the status, no orphan."""
    cases = [(sent, rank) for sent in (signal.SIGTERM, signal.SIGINT) for rank in (1, 0)]
    survived = 0
    for sent, rank in cases:
        folder = tmp_path / f"{sent.name}{rank}"
        folder.mkdir()
        options = [*SMALL, "max_epochs=300", "scheduler.warmup_epochs=1", "batch_size=8"]
        options += ["trainer=ddp", "trainer.devices=2", "trainer.accelerator=cpu"]
        with open(folder / "said", "w") as said, open(folder / "error", "w") as error:
            first = subprocess.Popen(
                [sys.executable, "-m", "rdm_solo.train", *options, "hydra.run.dir=run"],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": PATH, "PYTHONWARNINGS": ""},
                stdout=said,
                stderr=error,
            )
        while "epoch 2/" not in (folder / "said").read_text():
            assert first.poll() is None, (folder / "error").read_text()
            time.sleep(0.1)
        (child,) = children_of(first.pid)
        os.kill(child if rank else first.pid, sent)
        status = first.wait(60)
        said, error = ((folder / name).read_text() for name in ("said", "error"))
        fine = [status == 128 + sent, error == "", "to go on: python -m rdm_solo.train" in said]
        fine += [not Path(f"/proc/{child}").exists(), not (folder / "run" / FAILED).exists()]
        fine += [(folder / "run" / "summary.json").exists(), len(rows(folder / "run")) >= 2]
        print(sent.name, rank, status, fine, said[-300:], error[-1000:])
        survived += all(fine)
    record("SIGINT or SIGTERM to one of a run's two processes", len(cases), survived)


@pytest.mark.parametrize("launcher", ["RANK", "LOCAL_RANK", "SLURM_PROCID"])
def test_one_process_alone_announces_the_run(launcher, monkeypatch):
    for name in training.RANK_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert training.is_first_process()
    for rank, speaks in (("0", True), ("1", False)):
        monkeypatch.setenv(launcher, rank)
        assert training.is_first_process() == speaks


def test_the_first_reason_is_kept(tmp_path):
    assert failures.note(tmp_path, "a bad image") is None
    assert failures.note(tmp_path, "connection closed") == "a bad image"
    (tmp_path / FAILED).write_text("")  # by an earlier version, on a full disk
    assert failures.note(tmp_path, "diverged") is None
    assert failures.of(tmp_path) == "diverged"
    assert failures.note(tmp_path / "nowhere", "disk full") is None


def first_of(rank: int, ready, folders: list[Path]) -> list[str | None]:
    found = []
    for folder in folders:
        ready.wait()
        found.append(failures.note(folder, str(rank)))
    return found


def test_of_processes_that_fail_at_one_moment_one_alone_is_the_first(tmp_path):
    folders = [tmp_path / str(n) for n in range(100)]
    for folder in folders:
        folder.mkdir()
    fork = multiprocessing.get_context("fork")
    with fork.Manager() as manager, ProcessPoolExecutor(4, fork) as pool:
        ready = manager.Barrier(4)
        found = [pool.submit(first_of, rank, ready, folders) for rank in range(4)]
        said = zip(*(each.result(60) for each in found))
    for folder, answers in zip(folders, said):
        assert answers.count(None) == 1, answers
        assert {*answers} == {None, failures.of(folder)}
