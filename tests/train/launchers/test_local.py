"""``launcher=local``: the runs of a sweep at once, each in a process of its own."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from conftest import command, started
from omegaconf import OmegaConf
from support.small_runs import SMALL, run
from support.terminal import in_a_terminal

from rdm_solo.train import signals
from rdm_solo.train.launchers import processes
from rdm_solo.train.launchers.board import Board
from rdm_solo.train.launchers.devices import Share
from rdm_solo.train.launchers.plan import Job

OPTIONS = [*SMALL, "max_epochs=2", "scheduler.warmup_epochs=1", "filter=target_pow"]
LOCAL = ["-m", *OPTIONS, "launcher=local", "launcher.jobs=2"]


def of_folder(folder: Path) -> list[int]:
    """The processes that train a run below that folder, or load its images."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"RDM_SOLO_SWEEP={folder}".encode() in (path / "environ").read_bytes():
                found.append(int(path.name))
    return found


def none_left(folder: Path) -> bool:
    for _ in range(200):
        if not of_folder(folder):
            return True
        time.sleep(0.1)
    return False


@pytest.mark.process
class TestCommand:
    def test_runs_at_once_are_those_of_one_after_the_other(self, tmp_path):
        """One fails, and the others go on; tables, files and figures are those of basic."""
        sweep = ["p=soft,-1", "hydra.sweep.dir=sweep", "hydra.sweep.subdir=${p}"]
        out = command("rdm_solo.train", *LOCAL, *sweep, cwd=tmp_path, PYTHONWARNINGS="")
        assert out.returncode == 1, (out.stdout + out.stderr)[-3000:]
        assert out.stderr == ""
        assert "2 runs, 2 at once on this machine, in sweep" in out.stdout
        assert re.search(r"^\[-1 *\] epoch 2/2: loss", out.stdout, re.M)
        assert re.search(r"^\[-1 *\] ended after \d+ s$", out.stdout, re.M)
        assert re.search(r"^\[soft\] failed after \d+ s$", out.stdout, re.M)
        table = out.stdout.rpartition("\nsetting")[2]
        assert table.count("SimSiam, h(σ) = σ^") == 1
        assert "failed: soft: p must be a number" in table
        assert "python -m rdm_solo.report sweep" in table
        one = run(tmp_path / "one", *OPTIONS, "p=-1")
        other = json.loads((tmp_path / "sweep" / "-1" / "summary.json").read_text())
        assert other["last"] == one["last"]
        assert "launcher" not in other["config"]
        for name in ("config", "hydra", "overrides"):
            assert (tmp_path / "sweep" / "-1" / ".hydra" / f"{name}.yaml").is_file()

    @pytest.mark.long
    def test_rows_that_move_in_a_terminal_and_ctrl_c(self, tmp_path):
        options = [*LOCAL, "max_epochs=2000", "p=-0.5", "hydra.sweep.dir=sweep"]
        seen, status = in_a_terminal(["rdm_solo.train", *options], tmp_path, 80, b"] 2/2000 [")
        assert status == 130, seen[-3000:]
        rows = re.findall(
            r"\[\d_simsiam_target_pow_p=-\S+ *\] \d+/2000 \[[#.]{12}\][^\r\n\x1b]*", seen
        )
        assert rows
        assert max(map(len, rows)) < 80
        assert "Ctrl-C: stopping 1 runs" in seen
        assert "Traceback" not in seen
        assert "to go on: python -m rdm_solo.train resume=sweep" in seen
        assert none_left(tmp_path / "sweep")
        (stopped,) = tmp_path.glob("sweep/*/summary.json")
        assert json.loads(stopped.read_text())["stopped"] == "Ctrl-C"


def job(folder: Path, program: str) -> Job:
    """A job whose environment names this program, to be run instead of a training."""
    hydra = {"hydra": {"job": {"env_set": {"PROGRAM": program}}}}
    return Job(folder, OmegaConf.create(), [], OmegaConf.create(hydra))


@pytest.fixture
def programs(monkeypatch):
    """Let a task run the program that its variable holds, in place of a training."""
    popen = subprocess.Popen

    def start(line, **options):
        assert line[:3] == [sys.executable, "-m", "rdm_solo.train"]
        return popen([sys.executable, "-c", options["env"]["PROGRAM"]], **options)

    monkeypatch.setattr(processes.subprocess, "Popen", start)


class TestProcesses:
    def test_each_has_its_cores_and_variables(self, tmp_path, programs):
        (core, *_) = sorted(os.sched_getaffinity(0))
        program = (
            "import os; print('error:', os.sched_getaffinity(0), os.environ['OMP_NUM_THREADS'], "
            "os.getsid(0) == os.getpid()); raise SystemExit(3)"
        )
        jobs = [job(tmp_path / str(i), program) for i in range(3)]
        reasons = processes.run(jobs, tmp_path, [Share(cores=(core,), threads=1)])
        assert reasons == {each.folder: f"{{{core}}} 1 True" for each in jobs}
        assert core in os.sched_getaffinity(0)

    def test_shares_are_given_on_as_they_become_free(self, tmp_path, programs):
        """One long run on one share, short ones after each other on the other."""
        program = (
            "import os, time; time.sleep({}); print('error:', os.environ['CUDA_VISIBLE_DEVICES']); "
            "raise SystemExit(2)"
        )
        jobs = [job(tmp_path / str(i), program.format(2.5 if i == 0 else 0.1)) for i in range(4)]
        reasons = processes.run(jobs, tmp_path, [Share(gpus=("a",)), Share(gpus=("b",))])
        assert list(reasons.values()) == ["b", "b", "b", "a"]

    def test_what_a_run_leaves_behind_is_ended_with_it(self, tmp_path, programs):
        child = "import time; time.sleep(600)"
        program = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}])"
        assert processes.run([job(tmp_path / "run", program)], tmp_path, [Share()]) == {}
        assert none_left(tmp_path)

    def test_a_run_that_dies_without_a_word(self, tmp_path, programs, capsys):
        program = "import os; print('the last line'); os.kill(os.getpid(), 9)"
        reasons = processes.run([job(tmp_path / "run", program)], tmp_path, [Share()])
        assert "SIGKILL" in reasons[tmp_path / "run"]
        assert "memory" in reasons[tmp_path / "run"]
        assert "[run] the last line" in capsys.readouterr().out

    def test_its_reason_counts_whatever_the_clock_of_the_disk_says(self, tmp_path, programs):
        folder = tmp_path / "run"
        folder.mkdir()
        program = (
            f"import os; os.chdir({str(folder)!r})\n"
            "open('failed.txt', 'w').write('its own'); os.utime('failed.txt', (0, {}))\n"
            "raise SystemExit(1)"
        )
        assert processes.run([job(folder, program.format(1))], tmp_path, [Share()]) == {}
        # One that an earlier start has left, which this one did not replace.
        reasons = processes.run([job(folder, "raise SystemExit(1)")], tmp_path, [Share()])
        assert reasons == {folder: "the run ended with status 1"}

    def test_without_a_process_of_forks_runs_start_afresh(self, tmp_path, programs, monkeypatch):
        def none(*arguments):
            raise OSError(errno.EAGAIN, "no process")

        monkeypatch.setattr(processes, "Warm", none)
        monkeypatch.setattr(processes, "_may_be_forked", lambda _: True)
        jobs = [job(tmp_path / "run", "raise SystemExit(3)")]
        cores = (min(os.sched_getaffinity(0)),)
        reasons = processes.run(jobs, tmp_path, [Share(cores=cores)])
        assert reasons == {tmp_path / "run": "the run ended with status 3"}

    def test_a_run_that_cannot_be_started_leaves_its_share_to_the_next(
        self, tmp_path, programs, monkeypatch
    ):
        begin = processes.subprocess.Popen

        def start(line, **options):
            if options["env"]["PROGRAM"] == "none":
                raise OSError(errno.ENOMEM, "no room")
            return begin(line, **options)

        monkeypatch.setattr(processes.subprocess, "Popen", start)
        jobs = [job(tmp_path / "0", "none"), job(tmp_path / "1", "raise SystemExit(3)")]
        assert processes.run(jobs, tmp_path, [Share()]) == {
            tmp_path / "0": "the run cannot be started (no room)",
            tmp_path / "1": "the run ended with status 3",
        }

    def test_ctrl_c_reaches_all_runs_and_none_begins(self, tmp_path, programs, capsys, monkeypatch):
        begin, started = processes.subprocess.Popen, []

        def start(*line, **options):
            started.append(options["env"]["PROGRAM"])
            return begin(*line, **options)

        monkeypatch.setattr(processes.subprocess, "Popen", start)
        program = (
            "import pathlib, signal, sys, time\n"
            "signal.signal(signal.SIGINT, lambda *_: sys.exit(time.sleep({}) or 130))\n"
            "pathlib.Path({!r}).touch()\n"
            "time.sleep(600)"
        )
        begun = [tmp_path / f"begun {i}" for i in range(2)]
        jobs = [job(tmp_path / str(i), program.format(i, str(begun[i % 2]))) for i in range(3)]

        def press() -> None:
            while not all(path.exists() for path in begun):
                time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=press, daemon=True).start()
        with pytest.raises(signals.Stopped), signals.handled():
            processes.run(jobs, tmp_path, [Share(), Share()])
        assert len(started) == 2
        said = capsys.readouterr().out
        assert "Ctrl-C: stopping 2 runs" in said
        assert re.findall(r"\] (\w+) after \d+ s", said) == ["stopped", "stopped"]
        assert none_left(tmp_path)

    def test_many_lines_and_long_ones_do_not_hold_a_run_up(self, tmp_path, programs):
        program = "print('x' * 10**6); [print('y' * 100) for _ in range(20000)]"
        assert processes.run([job(tmp_path / "run", program)], tmp_path, [Share()]) == {}


def test_runs_go_on_where_their_terminal_was_closed(monkeypatch):
    main, terminal = os.openpty()
    with os.fdopen(terminal, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        board = Board(["a", "b"], 2)
        assert board.moves
        os.close(main)
        board.show(0, "a", "starts")
        board.show_line(1, "b", "epoch 1/3: loss 0.5")
        board.ended(1)
        assert not board.moves
        monkeypatch.undo()


@pytest.mark.long
@pytest.mark.process
def test_the_runs_end_when_their_launcher_is_killed(tmp_path):
    """By the system, for want of memory, say; what is left goes on as if nothing had happened."""
    options = [*LOCAL, "max_epochs=12", "p=-0.5,-0.3,-1", "hydra.sweep.dir=sweep"]
    options += ["hydra.sweep.subdir=${p}"]
    process = started("rdm_solo.train", *options, cwd=tmp_path)
    for line in process.stdout:
        if "epoch 3/12" in line:
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert none_left(tmp_path / "sweep")
    assert not (tmp_path / "sweep" / "-1").exists()
    more = ["resume=sweep", "launcher=local"]
    out = command("rdm_solo.train", *more, cwd=tmp_path, PYTHONWARNINGS="")
    assert (out.returncode, out.stderr) == (0, ""), out.stdout[-3000:]
    assert out.stdout.count("epoch 12/12") == 3
    for p in ("-0.5", "-1"):
        whole = run(tmp_path / p, *OPTIONS, "max_epochs=12", f"p={p}")
        found = json.loads((tmp_path / "sweep" / p / "summary.json").read_text())
        assert found["last"] == whole["last"]
        assert found["stopped"] is None
