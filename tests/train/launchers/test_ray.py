"""``launcher=ray``: a task of Ray for each run of a sweep."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path

import pytest
from conftest import started
from support.small_runs import SMALL, configure, run

from rdm_solo.train.launchers import ray as launcher
from rdm_solo.train.launchers.plan import Job

OPTIONS = [*SMALL, "scheduler.warmup_epochs=1", "filter=target_pow", "max_epochs=8"]
SWEEP = ["-m", *OPTIONS, "launcher=ray", "hydra.sweep.dir=sweep", "hydra.sweep.subdir=${p}"]


def kill_the_worker_of(folder: Path) -> None:
    """Kill the worker of Ray that trains the run in that folder, as a lost machine would."""
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"RDM_SOLO_FOLDER={folder}".encode() in (path / "environ").read_bytes():
                parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
                if b"ray::" in Path("/proc", parent, "cmdline").read_bytes():
                    os.kill(int(parent), signal.SIGKILL)
                    return
    raise AssertionError("there is no worker")


@pytest.mark.long
@pytest.mark.process
def test_a_run_whose_worker_is_lost_goes_on_and_a_failure_stops_no_other(tmp_path):
    pytest.importorskip("ray")
    process = started("rdm_solo.train", *SWEEP, "p=-0.5,soft", cwd=tmp_path)
    said, logs = [], tmp_path / "sweep" / ".ray"
    for line in process.stdout:
        said.append(line)
        if "handed to Ray" in line and line.startswith("[-0.5"):
            while not any("epoch 3/8" in path.read_text() for path in logs.glob("*_0.log")):
                time.sleep(0.05)
            kill_the_worker_of(tmp_path / "sweep" / "-0.5")
    status, text = process.wait(timeout=300), "".join(said)
    assert status == 1, text[-3000:]
    (log,) = logs.glob("*_0.log")
    assert "Ray has started this run again: its run goes on in" in log.read_text()
    assert "failed: soft: p must be a number" in text
    found = json.loads((tmp_path / "sweep" / "-0.5" / "summary.json").read_text())
    assert found["last"] == run(tmp_path / "one", *OPTIONS, "p=-0.5")["last"]


@pytest.mark.long
@pytest.mark.process
def test_ctrl_c_ends_the_runs_and_waits_for_their_summaries(tmp_path):
    """The third run waits for a place, and does not begin."""
    pytest.importorskip("ray")
    more = ["p=-0.5,-0.3,-1", "max_epochs=3000", "launcher.jobs=2"]
    process = started("rdm_solo.train", *SWEEP, *more, cwd=tmp_path)
    for line in process.stdout:
        if "epoch 3/3000" in line:
            process.send_signal(signal.SIGINT)
            break
    said = process.stdout.read()
    assert process.wait(timeout=120) == 130, said[-2000:]
    summaries = [json.loads(p.read_text()) for p in tmp_path.glob("sweep/*/summary.json")]
    assert {summary["stopped"] for summary in summaries} == {"SIGTERM"}
    assert 1 <= len(summaries) <= 2
    assert not (tmp_path / "sweep" / "-1").exists()
    assert "to go on: python -m rdm_solo.train resume=sweep" in said


def test_another_command_writes_other_logs(tmp_path, monkeypatch):
    """In the folder of the same sweep, as with resume=: what a log holds is one run's."""
    pytest.importorskip("ray")
    names = iter(["the first", "the second"])
    monkeypatch.setattr(launcher.time, "strftime", lambda _: next(names))
    options = configure("launcher=ray").launcher
    jobs = [Job(tmp_path / name, configure()) for name in "ab"]
    logs = [each.output for _ in range(2) for each in launcher._Tasks(jobs, tmp_path, options).all]
    assert len({*logs}) == 4
    assert {log.parent for log in logs} == {tmp_path / ".ray"}


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("launcher.cpus=0", "launcher.cpus must be a number above 0, got 0"),
        ("trainer.num_nodes=2", "keeps a run on one machine, got trainer.num_nodes=2"),
        ("launcher.adress=a", "did you mean 'launcher.address'?"),
    ],
)
def test_what_ray_could_not_use_is_refused(option, says, typed, tmp_path):
    out = typed("rdm_solo.train", *SWEEP, "p=-1,-0.5", option, cwd=tmp_path)
    assert out.returncode == 2
    assert says in out.stderr
    assert not any(tmp_path.iterdir())
