"""Runs that are forked from a process which has imported everything."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator

import pytest
from conftest import command
from support.small_runs import SMALL

from rdm_solo.train import sweep
from rdm_solo.train.launchers.warm import Warm

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="runs are forked on Linux alone"),
]


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
    variables = {"OMP_NUM_THREADS": "1", sweep.VARIABLE: str(tmp_path)}
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
def test_without_the_process_runs_end_and_no_more_begin(tmp_path):
    lost = Warm({})
    assert lost.ready(lambda: None)
    options = [*SMALL, "max_epochs=3000", "filter=target_pow", f"hydra.run.dir={tmp_path / 'run'}"]
    run = lost.start(options, {sweep.VARIABLE: str(tmp_path)}, sorted(os.sched_getaffinity(0)))
    while "epoch 1/3000" not in run.stdout.readline():
        pass
    os.kill(lost._process.pid, signal.SIGKILL)
    assert run.wait(60) == 1  # its status is lost
    assert '"stopped": "SIGTERM"' in (tmp_path / "run" / "summary.json").read_text()
    with pytest.raises(OSError, match="the process that starts the runs has ended"):
        lost.start([], {}, [])
    lost.close()


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
