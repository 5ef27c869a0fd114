"""Runs that are forked from a process which has imported everything."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from conftest import command
from support.small_runs import SMALL

from rdm_solo.train import environment
from rdm_solo.train.launchers import warm as room
from rdm_solo.train.launchers.warm import Warm

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="runs are forked on Linux alone"),
]


def test_a_signal_just_after_the_fork_reaches_the_run(warm, tmp_path):
    """A launcher asks once, and then waits."""
    options = [*SMALL, "max_epochs=3000", f"hydra.run.dir={tmp_path / 'run'}"]
    for number in (signal.SIGTERM, signal.SIGINT):
        run = warm.start(options, {}, sorted(os.sched_getaffinity(0)))
        run.send_signal(number)
        assert run.wait(30) in (-number, 128 + number)


def test_slurms_warning_to_all_processes_leaves_it(warm):
    os.kill(warm._process.pid, signal.SIGUSR1)
    assert warm.start(["nonsense=1"], {}, sorted(os.sched_getaffinity(0))).wait(60) == 2


@pytest.fixture
def changed(monkeypatch) -> Iterator[Callable[[str], Warm]]:
    """Such a process without its imports, which runs these lines first."""
    popen, made = subprocess.Popen, []

    def make(lines: str) -> Warm:
        script = (
            "import os, sys, errno\n"
            "from rdm_solo.train.launchers import warm\n"
            f"warm.IMPORTED = ()\n{lines}warm.main()\n"
        )

        def start(line, **options):
            return popen([sys.executable, "-c", script], **options)

        with monkeypatch.context() as patch:
            patch.setattr(room.subprocess, "Popen", start)
            made.append(Warm({}))
        assert made[-1].ready(lambda: None)
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_run_ends_though_threads_of_a_pool_wait_for_work(changed):
    """As those of a library may, which Python wakes when it ends."""
    lines = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "pool = ThreadPoolExecutor()\n"
        "warm._train = lambda: pool.submit(int).result()\n"
    )
    assert changed(lines).start([], {}, sorted(os.sched_getaffinity(0))).wait(20) == 0


def test_a_run_takes_threads_as_openmp_writes_them(changed):
    """Of several levels; what it could not read is as if nothing was typed."""
    lines = "import torch\nwarm._train = torch.get_num_threads\n"
    cores = sorted(os.sched_getaffinity(0))
    process = changed(f"os.environ['OMP_NUM_THREADS'] = '1'\n{lines}")
    for typed, threads in (("3,1", 3), ("2", 2), ("", 1), ("many", 1)):
        assert process.start([], {"OMP_NUM_THREADS": typed}, cores).wait(20) == threads


def test_a_system_without_room_for_a_process_refuses_one_run(changed):
    """The others, and those that come later, are as before."""
    limited = changed(
        "fork, calls = os.fork, []\n"
        "def limited():\n"
        "    calls.append(1)\n"
        "    if len(calls) == 1:\n"
        "        raise OSError(errno.EAGAIN, 'no')\n"
        "    return fork()\n"
        "os.fork = limited\n"
    )
    cores = sorted(os.sched_getaffinity(0))
    with pytest.raises(OSError, match="temporarily unavailable"):
        limited.start(["nonsense=1"], {}, cores)
    assert limited.start(["nonsense=1"], {}, cores).wait(60) == 2


@pytest.fixture(scope="module")
def warm(tmp_path_factory) -> Iterator[Warm]:
    made = Warm({})
    assert made.ready(lambda: None)
    yield made
    made.close()


def test_a_forked_run_answers_as_one_that_was_started_afresh(warm, tmp_path, monkeypatch):
    fresh = command("rdm_solo.train", "nonsense=1", cwd=tmp_path)
    forked = warm.start(["nonsense=1"], {}, sorted(os.sched_getaffinity(0)))
    assert (forked.stdout.read(), forked.wait(60)) == (fresh.stderr, fresh.returncode)
    assert "nonsense" in fresh.stderr


def test_it_is_a_process_of_its_own_on_its_cores_and_ends_in_order(warm, tmp_path):
    """Of two runs, each in its folder; a signal to one is none to the other."""
    core = min(os.sched_getaffinity(0))
    options = [*SMALL, "max_epochs=3000", "filter=target_pow"]
    variables = {"OMP_NUM_THREADS": "1", environment.SWEEP: str(tmp_path)}
    runs = [
        warm.start([*options, f"hydra.run.dir={tmp_path / name}"], variables, [core])
        for name in ("one", "other")
    ]
    for run in runs:
        for line in run.stdout:
            if "epoch 1/3000" in line:
                break
        assert os.getsid(run.pid) == run.pid
        assert os.sched_getaffinity(run.pid) == {core}
    runs[0].send_signal(signal.SIGINT)
    assert runs[0].wait(60) == 130
    assert runs[1].poll() is None
    runs[1].terminate()
    assert runs[1].wait(60) == 143
    for name in ("one", "other"):
        assert (tmp_path / name / "summary.json").is_file()


@pytest.mark.long
def test_without_the_process_runs_end_and_none_is_forked(tmp_path):
    lost = Warm({})
    assert lost.ready(lambda: None)
    options = [*SMALL, "max_epochs=3000", "filter=target_pow", f"hydra.run.dir={tmp_path / 'run'}"]
    run = lost.start(options, {environment.SWEEP: str(tmp_path)}, sorted(os.sched_getaffinity(0)))
    while "epoch 1/3000" not in run.stdout.readline():
        pass
    os.kill(lost._process.pid, signal.SIGKILL)
    assert run.wait(60) == 1  # its status is lost
    assert '"stopped": "SIGTERM"' in (tmp_path / "run" / "summary.json").read_text()
    with pytest.raises(BrokenPipeError):
        lost.start([], {}, [])
    assert lost.has_ended
    lost.close()


def test_a_run_has_ended_also_where_nobody_has_asked_for_its_status():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert not room._is_gone(process.pid)
    process.stdin.close()
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT) is None:
        pass
    assert room._is_gone(process.pid)  # a zombie
    process.wait()
    assert room._is_gone(process.pid)


def test_a_launcher_that_is_killed_while_it_asks_leaves_no_run():
    ours, theirs = socket.socketpair()
    reader, writer = os.pipe()
    socket.send_fds(ours, [b'{"options": ["max_ep'], [writer])
    ours.shutdown(socket.SHUT_WR)
    assert room._served(theirs) is None
    for end in (ours, theirs):
        end.close()
    for number in (reader, writer):
        os.close(number)


def test_where_an_import_fails_nothing_is_forked(tmp_path):
    (tmp_path / "sklearn").mkdir()
    (tmp_path / "sklearn" / "__init__.py").write_text("raise RuntimeError('broken')\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    broken = Warm({"PYTHONPATH": path})
    began = time.monotonic()
    assert not broken.ready(lambda: None)
    assert time.monotonic() - began < 60
    broken.close()


def test_a_wait_for_the_imports_can_be_interrupted():
    waiting = Warm({})

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        waiting.ready(stop)
    began = time.monotonic()
    waiting.close()
    assert time.monotonic() - began < 1
