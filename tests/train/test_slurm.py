"""Jobs of a real SLURM that are killed at random moments, warned and requeued."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
from pathlib import Path

import pytest
from support import cluster
from support.drills import draws, record, tries
from support.slurm import set_job
from support.small_runs import SMALL

from rdm_solo.train import signals

EPOCHS = 60
OPTIONS = [*SMALL, f"max_epochs={EPOCHS}", "scheduler.warmup_epochs=1", "trainer=cpu"]
DRILL = "a run on a real SLURM, killed, requeued or warned at random epochs"


def script(folder: Path, *more: str) -> Path:
    return cluster.script(folder, [*OPTIONS, *more], "--requeue --ntasks=1")


@pytest.fixture(scope="module")
def whole(slurm, tmp_path_factory) -> bytes:
    """The table of the run that nobody interrupts."""
    folder = tmp_path_factory.mktemp("whole")
    slurm.run(script(folder, "hydra.run.dir=run"))
    return (folder / "run" / "metrics.csv").read_bytes()


@pytest.mark.long
@pytest.mark.process
@pytest.mark.parametrize("typed", [[], ["hydra.run.dir=run"]], ids=["default folder", "typed"])
def test_a_run_that_is_interrupted_many_times(slurm, whole, tmp_path, typed):
    """By kill -9, by SLURM's own requeue (SIGTERM), and by USR1, at random epochs."""
    name = f"{DRILL}, {'typed' if typed else 'default'} folder"
    draw, number = draws(name), tries(2, 5 if typed else 10)
    job, said = slurm.submit(script(tmp_path, *typed), tmp_path), tmp_path / "said.txt"
    for start in range(number):
        cluster.until(lambda start=start: epochs(said, start) != [])
        epoch = epochs(said, start)[0] + draw.randrange(EPOCHS // number - 2)
        cluster.until(lambda start=start, epoch=epoch: epoch in epochs(said, start))
        how = draw.choice(["killed", "requeued", "warned"])
        print(epoch, how)
        if how == "killed":
            os.kill(process_in(tmp_path), signal.SIGKILL)
            slurm.wait(job, "FAILED")
        elif how == "warned":
            slurm.call("scancel", "--signal=USR1", job)
        slurm.start_again(job, requeue=how != "warned")
    slurm.wait(job, "COMPLETED", "FAILED")
    (found,) = tmp_path.rglob("metrics.csv")
    text = said.read_text()
    print(text[-1000:])
    survived = found.read_bytes() == whole and text.count("SLURM has started job") == number
    record(name, number, number * survived)


@pytest.mark.long
@pytest.mark.process
@pytest.mark.parametrize("survives", [False, True], ids=["with its step", "its step survives"])
def test_a_node_that_is_lost(slurm, whole, tmp_path, survives):
    """Its job starts on the other node, and goes on. Where the first start's processes survive,
    the folder is theirs: the second start is refused, and they end the run."""
    job, said = slurm.submit(script(tmp_path), tmp_path), tmp_path / "said.txt"
    cluster.until(lambda: said.exists() and f"epoch 3/{EPOCHS}" in said.read_text())
    node = slurm.state(job)["NodeList"]
    training = process_in(tmp_path)
    try:
        os.kill(slurm.daemon(node), signal.SIGKILL)
        if survives:
            os.kill(training, signal.SIGSTOP)  # until SLURM has noticed
        else:
            slurm.kill_step(job)
            os.kill(training, signal.SIGKILL)
        slurm.start_again(job, requeue=False)
        slurm.wait(job, "COMPLETED", "FAILED")
        text, state = said.read_text(), slurm.state(job)
        assert state["NodeList"] != node
        if survives:
            assert state["JobState"] == "FAILED", text[-2000:]
            assert re.search("error: another run is writing to .*: wait until it ends", text)
            os.kill(training, signal.SIGCONT)
        else:
            assert state["JobState"] == "COMPLETED", text[-2000:]
            assert "its run goes on in" in text
        (table,) = tmp_path.rglob("metrics.csv")
        cluster.until((table.parent / "summary.json").exists)
        assert table.read_bytes() == whole
    finally:
        slurm.start_node(node)
        cluster.until(slurm.idle)


def epochs(said: Path, start: int) -> list[int]:
    """The epochs that a job has trained since it was started again that many times."""
    starts = said.read_text().split("SLURM has started job") if said.exists() else []
    return [
        int(epoch)
        for text in starts[start : start + 1]
        for epoch in re.findall(rf"epoch (\d+)/{EPOCHS}", text)
    ]


def process_in(folder: Path) -> int:
    """The training that was started in that folder."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            line = (path / "cmdline").read_bytes().split(b"\0")
            here = os.readlink(path / "cwd") == str(folder)
        except OSError:
            continue
        if here and b"rdm_solo.train" in line and b"python" in line[0]:
            return int(path.name)
    raise AssertionError("there is no training")


def warned() -> None:
    os.kill(os.getpid(), signal.SIGUSR1)


def test_one_process_of_a_run_answers_the_warning_before_the_time_limit(tmp_path, monkeypatch):
    """SLURM sends USR1 to the processes that load images, too."""
    program = tmp_path / "scontrol"
    program.write_text(f"#!/bin/sh\necho $@ >> {tmp_path}/asked\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    set_job(monkeypatch, 7)
    with signals.handled():
        worker = multiprocessing.get_context("fork").Process(target=warned)
        worker.start()
        worker.join()
        assert worker.exitcode == 0
        assert not (tmp_path / "asked").exists()
        warned()
    assert (tmp_path / "asked").read_text() == "requeue 7\n"
