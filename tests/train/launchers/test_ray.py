"""``launcher=ray``: a task of Ray for each run of a sweep."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import sys
import time
import types
from pathlib import Path

import pytest
from conftest import command, started
from support.small_runs import SMALL, configure, run

from rdm_solo.train import signals
from rdm_solo.train.launchers import ray as launcher
from rdm_solo.train.launchers.plan import Job

OPTIONS = [*SMALL, "scheduler.warmup_epochs=1", "filter=target_pow", "max_epochs=8"]
LONGER = ["max_epochs=40"]  # so that a run is not over before it is killed
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
    process = started("rdm_solo.train", *SWEEP, *LONGER, "p=-0.5,soft", cwd=tmp_path)
    said, logs = [], tmp_path / "sweep" / ".ray"
    for line in process.stdout:
        said.append(line)
        if line.startswith("[-0.5") and "Ray task 0: waits" in line:
            while not any("epoch 3/40" in path.read_text() for path in logs.glob("*_0.log")):
                time.sleep(0.05)
            kill_the_worker_of(tmp_path / "sweep" / "-0.5")
    status, text = process.wait(timeout=300), "".join(said)
    assert re.search(r"^\[-0\.5\] Ray task 0: waits for 1 core$", text, re.M)
    assert status == 1, text[-3000:]
    (log,) = logs.glob("*_0.log")
    assert "Ray has started this run again: its run goes on in" in log.read_text()
    assert "failed: soft: p must be a number" in text
    found = json.loads((tmp_path / "sweep" / "-0.5" / "summary.json").read_text())
    assert found["last"] == run(tmp_path / "one", *OPTIONS, *LONGER, "p=-0.5")["last"]


@pytest.mark.long
@pytest.mark.process
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_runs_and_waits_for_their_summaries(number, status, tmp_path):
    """The third run waits for a place, and does not begin."""
    pytest.importorskip("ray")
    more = ["p=-0.5,-0.3,-1", "max_epochs=3000", "launcher.jobs=2"]
    process = started("rdm_solo.train", *SWEEP, *more, cwd=tmp_path)
    for line in process.stdout:
        if "epoch 3/3000" in line:
            process.send_signal(number)
            break
    said = process.stdout.read()
    assert process.wait(timeout=120) == status, said[-2000:]
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
    tasks = [launcher._Tasks(jobs, tmp_path, options) for _ in range(2)]
    logs = [followed.output for both in tasks for followed in both.followed]
    assert len({*logs}) == 4
    assert {log.parent for log in logs} == {tmp_path / ".ray"}


@pytest.mark.long
@pytest.mark.process
def test_runs_for_which_this_machine_is_too_small_are_refused(tmp_path):
    pytest.importorskip("ray")
    more = ["p=-1,-0.5", f"launcher.cpus={(os.cpu_count() or 1) + 1}"]
    out = command("rdm_solo.train", *SWEEP, *more, cwd=tmp_path)
    assert out.returncode == 2, out.stdout
    assert re.fullmatch(r"error: launcher=ray: a run asks for \d+ cores, and .*\n", out.stderr)
    assert not (tmp_path / "sweep" / ".ray").exists()


GPUS = ["trainer.accelerator=gpu", "trainer.devices=2"]


@pytest.mark.parametrize(
    ("options", "machines", "wanted"),
    [
        (["launcher.cpus=16"], [{"CPU": 8.0}, {"CPU": 8.0}], "16 cores"),
        (["trainer=gpu"], [{"CPU": 8.0}], "1 core and 1 GPU"),
        # Two machines together have what no one of them has.
        (
            ["launcher.cpus=8", *GPUS],
            [{"CPU": 8.0, "GPU": 1.0}, {"GPU": 2.0}],
            "8 cores and 2 GPUs",
        ),
        (["launcher.cpus=8", *GPUS], [{"CPU": 8.0, "GPU": 2.0}], None),
        (["launcher.cpus=0.5"], [{"CPU": 1.0}], None),
    ],
)
def test_what_no_machine_has(options, machines, wanted, tmp_path, caplog):
    """A cluster of the command's own stays as it is; to another one, machines may be added."""
    config = configure("launcher=ray", *options)
    jobs = [Job(tmp_path, config)]
    if wanted is None:
        launcher.check_room(jobs, config.launcher, machines)
    else:
        with pytest.raises(ValueError, match=f"launcher=ray: a run asks for {wanted}, and this"):
            launcher.check_room(jobs, config.launcher, machines)
    config.launcher.address = "auto"
    launcher.check_room(jobs, config.launcher, machines)
    sentence = f"warning: no machine of the Ray cluster has {wanted}: runs that ask for it wait"
    assert [record.message.startswith(sentence) for record in caplog.records] == [True] * bool(
        wanted
    )


def test_an_address_without_a_cluster_is_refused(monkeypatch):
    ray = pytest.importorskip("ray")
    says = r"^launcher.address=a b: no Ray .* \(Invalid address format: a b\)"
    with pytest.raises(ValueError, match=says), signals.handled():  # Ray leaves its handler
        launcher._connect("a b")

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ValueError, match=f"^launcher.address=127.0.0.1:{port}: no Ray .* refused"):
        launcher._connect(f"127.0.0.1:{port}")

    def init(**options):
        raise ConnectionError("Could not find any running Ray instance. Please specify the one.")

    monkeypatch.setattr(ray, "init", init)  # of another test's there may be one
    says = (
        "launcher.address=auto: no Ray cluster can be joined (Could not find any running Ray "
        "instance); start one with `ray start --head`, or leave launcher.address out."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(says)}$"):
        launcher._connect("auto")


def test_sigterm_while_ray_starts(monkeypatch):
    """Ray's own handler raises SystemExit; afterwards, signals are ours again."""
    ray = pytest.importorskip("ray")

    def init(**options):
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))
        os.kill(os.getpid(), killed_by)

    monkeypatch.setattr(ray, "init", init)
    with signals.handled():
        killed_by = signal.SIGTERM
        with pytest.raises(signals.Stopped) as stopped:
            launcher._connect(None)
    assert stopped.value.status == 143
    with signals.handled():
        killed_by = 0  # no signal
        launcher._connect(None)
        with pytest.raises(signals.Stopped):
            os.kill(os.getpid(), signal.SIGTERM)


class AtOnce:
    """In place of Ray: a task is run where it is handed over."""

    def __init__(self, result):
        self.result, self.handed_over = result, []

    def remote(self, function):
        def run(*arguments):
            self.handed_over.append(arguments)
            return self.result

        return types.SimpleNamespace(options=lambda **_: types.SimpleNamespace(remote=run))

    def wait(self, tasks, **options):
        return tasks, []

    def get(self, task):
        if isinstance(task, Exception):
            raise task
        return task


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (-signal.SIGKILL, r"was ended by SIGKILL \(perhaps the machine ran out of memory\)"),
        (1, "has ended with status 1"),
        (RuntimeError("the machine is lost"), "has failed with RuntimeError"),
    ],
)
def test_how_a_run_that_left_no_reason_has_ended(result, says, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", AtOnce(result))
    options, job = configure("launcher=ray").launcher, Job(tmp_path / "a", configure())
    (reason,) = launcher._Tasks([job], tmp_path, options).until_all_have_ended().values()
    assert re.fullmatch(rf"Ray task 0 {says}; see {tmp_path}/\.ray/.*_0\.log", reason)


def test_the_status_of_a_run_that_was_killed_reaches_ray(tmp_path):
    line = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
    assert launcher._train(line, {}, str(tmp_path), tmp_path / "log") == -9


@pytest.mark.parametrize(
    ("options", "typed_before", "threads"),
    [
        (["launcher.cpus=4"], None, "4"),
        (["launcher.cpus=4", "trainer.devices=2"], None, "2"),
        (["launcher.cpus=1", "trainer.devices=2"], None, "1"),
        (["launcher.cpus=0.5"], None, "1"),
        (["launcher.cpus=4", "trainer.devices=auto"], None, "4"),
        (["launcher.cpus=4", "trainer.devices=2"], "3", "3"),
        (["launcher.cpus=4", "trainer.devices=many"], None, "4"),
    ],
)
def test_processes_share_the_cores_of_their_task(
    options, typed_before, threads, tmp_path, monkeypatch
):
    """Ray would give each of them as many threads as the task has cores."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if typed_before:
        monkeypatch.setenv("OMP_NUM_THREADS", typed_before)
    ray = AtOnce(1)
    monkeypatch.setitem(sys.modules, "ray", ray)
    config = configure("launcher=ray", "trainer.accelerator=cpu", *options)
    launcher._Tasks([Job(tmp_path, config)], tmp_path, config.launcher).until_all_have_ended()
    ((_, variables, _, _),) = ray.handed_over
    assert variables["OMP_NUM_THREADS"] == threads


def test_a_run_without_a_place_waits_for_another(tmp_path, monkeypatch):
    """What the terminal says: of the first, what it waits for until it prints something."""
    ray = AtOnce(0)
    ray.wait = lambda tasks, **options: ([], tasks)
    monkeypatch.setitem(sys.modules, "ray", ray)
    config = configure("launcher=ray", "trainer=gpu", "launcher.jobs=1", "launcher.cpus=2")
    jobs = [Job(tmp_path / name, config) for name in "ab"]
    tasks = launcher._Tasks(jobs, tmp_path, config.launcher)
    second = "waits, since launcher.jobs=1"
    assert [*tasks.states().values()] == ["waits for 2 cores and 1 GPU", second]
    tasks.followed[0].output.parent.mkdir()
    tasks.followed[0].output.touch()
    assert [*tasks.states().values()] == ["runs", second]


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
