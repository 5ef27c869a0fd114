"""A signal stops a run so that it can resume, and the processes of a run end together."""

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from conftest import command, start
from support.cluster import wait_until
from support.drills import draws, record, tries
from support.small_runs import DRAWN, FINISHED, SMALL, read_summary, rows, run

from rdm_solo.ground.lightning import pl
from rdm_solo.runs import checkpoints
from rdm_solo.train.resume import expand
from rdm_solo.train.stopping import Stopped

# The run of the fixture ``finished``, without its figure.
OPTIONS = [*FINISHED, "~callbacks.ranks"]
# Long enough not to end before it is stopped.
RUN = [*SMALL, "max_epochs=500", "scheduler.warmup_epochs=1"]
RUN += ["hydra.run.dir=run", "hydra.sweep.dir=sweep"]
TWO = ["trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2", "batch_size=8"]


class Send(pl.Callback):
    """Send this process a signal before training, or in a step or the validation of epoch 2."""

    def __init__(self, phase: str, number: int) -> None:
        self.phase = phase
        self.number = number
        self.was_interrupted = True

    def send(self) -> None:
        os.kill(os.getpid(), self.number)
        self.was_interrupted = False

    def on_train_start(self, trainer, pl_module):
        if self.phase == "untrained":
            self.send()

    def on_train_batch_end(self, trainer, pl_module, *_):
        if self.phase == "step" and trainer.global_step == 6:
            self.send()

    def on_validation_epoch_end(self, trainer, pl_module):
        if self.phase == "validation" and trainer.current_epoch == 1:
            self.send()


@pytest.mark.parametrize(
    ("phase", "number", "word", "epochs", "starts"),
    [
        ("step", signal.SIGTERM, "SIGTERM", 1, 1),
        # A job that fails before its first epoch is refused after two starts; Ctrl-C is no failure.
        ("untrained", signal.SIGINT, "Ctrl-C", 0, 3),
        ("validation", signal.SIGTERM, "SIGTERM", 1, 1),
    ],
)
def test_a_signal_stops_a_run_which_resumes(
    phase, number, word, epochs, starts, finished, tmp_path, caplog
):
    """A step is finished first. A measurement, which may take minutes, ends at once."""
    handler = signal.getsignal(number)
    for _ in range(starts):
        sender = Send(phase, number)
        with caplog.at_level("INFO"), pytest.raises(Stopped) as stop:
            run(tmp_path, *OPTIONS, callbacks=[sender])
        assert stop.value.status == 128 + number
        assert sender.was_interrupted is (phase != "step")
        assert signal.getsignal(number) == handler
        assert len(rows(tmp_path)) == epochs
    assert f"resume={tmp_path}" in caplog.text
    summary = read_summary(tmp_path)
    assert summary["stopped"] == word
    assert not summary["finished"]
    assert not (tmp_path / "failed.txt").exists()

    options = expand([f"resume={tmp_path}"])
    run(tmp_path, *[option for option in options if not option.startswith("hydra.")])
    assert rows(tmp_path) == rows(finished)


def processes_in(folder: Path, variable: str = "") -> list[int]:
    """Return the ids of this machine's processes in a folder, or of those with a variable."""
    numbers = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            environment = (path / "environ").read_bytes()
            if os.readlink(path / "cwd") == str(folder) and variable.encode() in environment:
                numbers.append(int(path.name))
    return numbers


def wait_for_epoch(number: int, process: subprocess.Popen[str]) -> None:
    """Read the output of a run or a sweep until an epoch has finished."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith(f"epoch {number}/"):
            return
    raise AssertionError(f"ended before epoch {number}:\n{''.join(lines)}")


@pytest.mark.process
def test_a_killed_run_resumes_exactly(tmp_path, train):
    options = [*SMALL, "max_epochs=10", "scheduler.warmup_epochs=1"]
    run(tmp_path / "uninterrupted", *options)
    process = start("rdm_solo", "train", *options, "hydra.run.dir=run", cwd=tmp_path)
    wait_for_epoch(2, process)
    process.kill()
    process.communicate()
    out = train("resume=run")
    assert out.returncode == 0, out.stderr
    assert "resuming after epoch" in out.stdout
    expected = (tmp_path / "uninterrupted" / "metrics.csv").read_bytes()
    assert (tmp_path / "run" / "metrics.csv").read_bytes() == expected


def press_ctrl_c(process: subprocess.Popen[str], folder: Path) -> str:
    """Send SIGINT to all processes in a folder, as a terminal does, and return the output."""
    for number in processes_in(folder):
        os.kill(number, signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in output
    return output


@pytest.mark.process
def test_ctrl_c_stops_both_processes_of_a_run(tmp_path):
    process = start("rdm_solo.train", *RUN, *TWO, cwd=tmp_path)
    wait_for_epoch(1, process)
    assert len(processes_in(tmp_path)) == 2
    output = press_ctrl_c(process, tmp_path)
    assert output.count("Ctrl-C") == 1
    assert "to resume: rdm-solo train resume=run\n" in output
    # Every finished epoch is in the table and in the checkpoint.
    _, content = checkpoints.latest(tmp_path / "run")
    assert len(rows(tmp_path / "run")) == checkpoints.epochs(content) >= 1


@pytest.mark.long
@pytest.mark.process
def test_a_run_whose_output_is_closed_stops_between_steps(tmp_path):
    process = start("rdm_solo.train", *RUN, cwd=tmp_path)
    wait_for_epoch(2, process)
    process.stdout.close()
    assert process.wait(timeout=120) == 141
    assert read_summary(tmp_path / "run")["stopped"] == "closed output"


@pytest.mark.long
@pytest.mark.process
def test_ctrl_c_is_left_to_the_run_by_the_workers_of_its_loaders(tree, tmp_path):
    options = [option for option in RUN if not option.startswith("dataset")]
    options += ["dataset=folder", f"dataset.root={tree}", "dataset.workers=2"]
    options += ["dataset.image_size=8"]
    process = start("rdm_solo.train", *options, cwd=tmp_path)
    wait_for_epoch(1, process)
    output = press_ctrl_c(process, tmp_path)
    assert output.count("Ctrl-C") == 1


@pytest.mark.long
@pytest.mark.process
@pytest.mark.parametrize("moment", ["start", "training"])
def test_the_second_process_ends_with_the_first_one(moment, tmp_path):
    process = start("rdm_solo.train", *RUN, *TWO, cwd=tmp_path)
    if moment == "training":
        wait_for_epoch(2, process)
    while process.poll() is None and not processes_in(tmp_path, "\0LOCAL_RANK=1\0"):
        time.sleep(0.001)
    process.kill()
    process.communicate(timeout=120)  # the second process holds the same pipe until it ends
    assert process.returncode == -signal.SIGKILL


@pytest.mark.long
@pytest.mark.process
def test_ctrl_c_ends_a_sweep_which_says_how_to_resume(tmp_path):
    options = ["seed=0,1,2", "launcher=local"]
    process = start("rdm_solo.train", "-m", *RUN, *options, cwd=tmp_path)
    wait_until(lambda: list(tmp_path.glob("sweep/*/metrics.csv")), 120)
    output = press_ctrl_c(process, tmp_path)
    assert output.count("to resume the sweep: rdm-solo train resume=sweep\n") == 1
    assert len(list(tmp_path.glob("sweep/*/metrics.csv"))) <= 2
    assert not processes_in(tmp_path)


@pytest.mark.long
@pytest.mark.process
@pytest.mark.parametrize("launcher", ["launcher=basic", "hydra/launcher=joblib"])
def test_the_runs_of_a_sweep_end_with_it(launcher, tmp_path):
    """joblib's workers, which start the runs, would train all of them without their parent."""
    process = start("rdm_solo.train", "-m", *RUN, "seed=0,1,2", launcher, cwd=tmp_path)
    wait_until(lambda: bool(processes_in(tmp_path, "\0RDM_SOLO_SWEEP=sweep\0")))
    process.kill()
    try:
        wait_until(lambda: not processes_in(tmp_path), 30)
    finally:
        for number in processes_in(tmp_path):
            os.kill(number, signal.SIGKILL)


@pytest.mark.long
@pytest.mark.process
def test_drill_killed_and_stopped_runs_resume(tmp_path):
    """Send a signal at any moment. The same command gives the table of an uninterrupted run."""
    options = [*DRAWN, "max_epochs=8", "scheduler.warmup_epochs=1"]
    run(tmp_path / "uninterrupted", *options)
    expected = (tmp_path / "uninterrupted" / "metrics.csv").read_bytes()
    name = "kill -9, Ctrl-C or SIGTERM at a random moment, and the same command again"
    draw = draws(name)
    attempts = tries(2, 20)
    survived = 0
    for attempt in range(attempts):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        number = draw.choice([signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
        process = start("rdm_solo.train", *options, "hydra.run.dir=run", cwd=folder)
        for _ in range(draw.randrange(12)):
            process.stdout.readline()
        time.sleep(draw.random())
        process.send_signal(number)
        process.communicate(timeout=120)
        for path in folder.rglob("*.ckpt"):
            checkpoints.read(path)
        for path in folder.rglob("*.json"):
            json.loads(path.read_bytes())
        again = command("rdm_solo.train", *options, "hydra.run.dir=run", cwd=folder)
        table = (folder / "run" / "metrics.csv").read_bytes()
        is_equal = again.returncode == 0 and table == expected
        print(attempt, number.name, process.returncode, again.stderr[-300:])
        survived += is_equal
    record(name, attempts, survived)


@pytest.mark.long
@pytest.mark.process
def test_drill_torchrun_restarts_a_run(tmp_path):
    options = ["rdm_solo.train", *RUN, *TWO, "max_epochs=30"]
    torchrun = ["torch.distributed.run", "--nproc-per-node=2", "--standalone", "--max-restarts=1"]
    # The variable names the parent of an earlier run; the parent of these is torchrun.
    process = start(*torchrun, "-m", *options, cwd=tmp_path, RDM_SOLO_PARENT="1")
    wait_for_epoch(3, process)
    for number in processes_in(tmp_path, "\0RANK=1\0"):
        os.kill(number, signal.SIGKILL)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output[-3000:]
    assert output.count("resuming after epoch") == 1
    out = command(*options, "hydra.run.dir=uninterrupted", cwd=tmp_path)
    assert out.returncode == 0, out.stderr
    expected = (tmp_path / "uninterrupted" / "metrics.csv").read_bytes()
    assert (tmp_path / "run" / "metrics.csv").read_bytes() == expected


def test_torchrun_needs_a_folder(tmp_path, train, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    out = train(*SMALL)
    assert out.returncode == 2
    assert "hydra.run.dir=FOLDER" in out.stderr
    assert not list(tmp_path.iterdir())
