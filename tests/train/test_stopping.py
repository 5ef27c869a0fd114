"""Signals stop a run in order; processes of a run end together."""

import contextlib
import json
import os
import signal
import time
from pathlib import Path

import pytest
from conftest import command, started
from support.drills import draws, record, tries
from support.small_runs import DRAWN, SMALL, rows, run

from rdm_solo.ground.lightning import pl
from rdm_solo.runs import checkpoints
from rdm_solo.train.stopping import Stopped

# Long enough not to end before it is stopped.
RUN = [*SMALL, "max_epochs=500", "scheduler.warmup_epochs=1"]
TWO = ["trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2", "batch_size=8"]


class SendAtStep(pl.Callback):
    """Send this process a signal at a step."""

    def __init__(self, number: int, step: int) -> None:
        self.number, self.step = number, step

    def on_train_batch_end(self, trainer, pl_module, *_):
        if trainer.global_step == self.step:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize(
    ("number", "status", "word"), [(signal.SIGINT, 130, "Ctrl-C"), (signal.SIGTERM, 143, "SIGTERM")]
)
def test_a_signal_stops_between_steps_and_the_run_resumes(number, status, word, tmp_path, caplog):
    run(tmp_path / "whole", *SMALL, "max_epochs=3")
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with caplog.at_level("INFO"), pytest.raises(Stopped) as stop:
        run(tmp_path / "run", *SMALL, "max_epochs=3", callbacks=[SendAtStep(number, 6)])
    assert stop.value.status == status
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert f"resume={tmp_path / 'run'}" in caplog.text
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["stopped"], summary["finished"]) == (word, False)
    assert len(rows(tmp_path / "run")) == 1
    assert not (tmp_path / "run" / "failed.txt").exists()
    run(tmp_path / "run", *SMALL, "max_epochs=3")
    assert rows(tmp_path / "run") == rows(tmp_path / "whole")


def processes_in(folder: Path, variable: str = "") -> list[int]:
    """Return the ids of this machine's processes in a folder, or of those with a variable."""
    numbers = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            environment = (path / "environ").read_bytes()
            if os.readlink(path / "cwd") == str(folder) and variable.encode() in environment:
                numbers.append(int(path.name))
    return numbers


@pytest.mark.process
def test_the_second_process_ends_if_the_first_is_killed_while_it_starts(tmp_path):
    process = started("rdm_solo.train", *RUN, *TWO, "hydra.run.dir=run", cwd=tmp_path)
    while process.poll() is None and not processes_in(tmp_path, "\0LOCAL_RANK=1\0"):
        time.sleep(0.001)
    process.kill()
    process.communicate(timeout=120)  # the second process holds the same pipe until it ends
    assert process.returncode == -signal.SIGKILL


@pytest.mark.process
def test_ctrl_c_on_a_sweep_prints_how_to_resume_it(tmp_path):
    options = ["-m", *RUN, "seed=0,1", "hydra.sweep.dir=sweep"]
    process = started("rdm_solo.train", *options, cwd=tmp_path)
    for line in process.stdout:
        if line.startswith("epoch 2/"):
            break
    for number in processes_in(tmp_path):  # a terminal sends it to the sweep and to its run
        os.kill(number, signal.SIGINT)
    rest, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "to resume the sweep: rdm-solo train resume=sweep\n" in rest


@pytest.mark.process
@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)
def test_the_processes_of_a_run_end_with_the_first_one(number, tmp_path):
    process = started("rdm_solo.train", *RUN, *TWO, "hydra.run.dir=run", cwd=tmp_path)
    for line in process.stdout:
        if line.startswith("epoch 2/"):
            break
    assert len(processes_in(tmp_path)) == 2
    process.send_signal(number)
    rest, _ = process.communicate(timeout=120)
    resumable = "to resume: rdm-solo train resume=run" in rest.replace(f"{tmp_path}/", "")
    assert resumable == (number == signal.SIGTERM)
    assert process.returncode == (143 if number == signal.SIGTERM else -number)
    until = time.monotonic() + 60
    while processes_in(tmp_path) and time.monotonic() < until:
        time.sleep(0.2)
    assert not processes_in(tmp_path)


@pytest.mark.process
def test_the_runs_of_a_joblib_sweep_end_with_the_sweep(tmp_path):
    """joblib's workers, which start the runs, would train all of them without their parent."""
    options = ["-m", *RUN, "seed=0,1,2", "hydra.sweep.dir=sweep", "hydra/launcher=joblib"]
    process = started("rdm_solo.train", *options, "hydra.launcher.n_jobs=2", cwd=tmp_path)
    for line in process.stdout:
        if line.startswith("epoch 2/"):
            break
    assert len(processes_in(tmp_path)) >= 5  # the sweep, two workers, two runs
    process.kill()
    until = time.monotonic() + 30
    while processes_in(tmp_path) and time.monotonic() < until:
        time.sleep(0.2)
    left = processes_in(tmp_path)
    for number in left:
        os.kill(number, signal.SIGKILL)
    assert not left


@pytest.mark.long
@pytest.mark.process
def test_drill_killed_and_stopped_runs_resume(tmp_path):
    """After a signal at any moment, the same command gives the run that was never hit."""
    options = [*DRAWN, "max_epochs=8", "scheduler.warmup_epochs=1", "hydra.run.dir=run"]
    run(tmp_path / "whole", *options[:-1])
    whole = (tmp_path / "whole" / "metrics.csv").read_bytes()
    name = "kill -9, Ctrl-C or SIGTERM at a random moment, and the same command again"
    draw, number, survived = draws(name), tries(2, 20), 0
    for attempt in range(number):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        sent = draw.choice([signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
        process = started("rdm_solo.train", *options, cwd=folder)
        for _ in range(draw.randrange(12)):
            process.stdout.readline()
        time.sleep(draw.random())
        process.send_signal(sent)
        process.communicate(timeout=120)
        for path in folder.rglob("*.ckpt"):
            checkpoints.read(path)
        for path in folder.rglob("*.json"):
            json.loads(path.read_bytes())
        again = command("rdm_solo.train", *options, cwd=folder)
        table = folder / "run" / "metrics.csv"
        fine = again.returncode == 0 and table.read_bytes() == whole
        print(attempt, sent.name, process.returncode, fine, again.stderr[-300:])
        survived += fine
    record(name, number, survived)


@pytest.mark.long
@pytest.mark.process
def test_drill_torchrun_restarts_a_run(tmp_path):
    options = [*RUN[:-2], "max_epochs=30", "scheduler.warmup_epochs=1", *TWO, "hydra.run.dir=run"]
    torchrun = ["torch.distributed.run", "--nproc-per-node=2", "--standalone", "--max-restarts=1"]
    process = started(*torchrun, "-m", "rdm_solo.train", *options, cwd=tmp_path)
    lines, killed = [], False
    for line in process.stdout:
        lines.append(line)
        if line.startswith("epoch 3/") and not killed:
            killed = True
            for number in processes_in(tmp_path, "\0RANK=1\0"):
                os.kill(number, signal.SIGKILL)
    text = "".join(lines)
    assert process.wait(timeout=300) == 0, text[-3000:]
    assert text.count("resuming after epoch") == 1
    whole = command("rdm_solo.train", *options[:-1], "hydra.run.dir=whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    tables = [(tmp_path / name / "metrics.csv").read_bytes() for name in ("run", "whole")]
    assert tables[0] == tables[1]


def test_torchrun_needs_a_folder(tmp_path, typed, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    out = typed("rdm_solo.train", *SMALL, cwd=tmp_path)
    assert (out.returncode, "hydra.run.dir=FOLDER" in out.stderr) == (2, True)
    assert not list(tmp_path.iterdir())
