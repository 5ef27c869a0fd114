"""Jobs of a real SLURM that are killed at random moments, warned and requeued."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from pathlib import Path

import pytest
from conftest import ROOT, command
from support import cluster
from support.drills import draws, record, tries
from support.slurm import set_job
from support.small_runs import SMALL

from rdm_solo.train import signals

EPOCHS = 40
OPTIONS = [*SMALL, f"max_epochs={EPOCHS}", "scheduler.warmup_epochs=1", "trainer=cpu"]
DRILL = "jobs of a real SLURM, killed at a random epoch and requeued"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    if why := cluster.why_not():
        pytest.skip(why)
    with cluster.cluster(tmp_path_factory.mktemp("slurm"), nodes=2) as made:
        yield made


def script(folder: Path, *more: str) -> Path:
    path = folder / "job.sh"
    path.write_text(
        "#!/bin/bash\n#SBATCH --job-name=pretrain --requeue --ntasks=1 --open-mode=append\n"
        f"#SBATCH --output={folder}/said.txt\n"
        f"export PYTHONPATH={ROOT}:{os.environ.get('PYTHONPATH', '')} OMP_NUM_THREADS=1\n"
        f"exec srun {sys.executable} -m rdm_solo.train {' '.join([*OPTIONS, *more])}\n"
    )
    path.chmod(0o755)
    return path


@pytest.mark.process
def test_a_job_of_two_nodes_is_that_of_two_processes_on_one(slurm, tmp_path):
    options = [*SMALL, "max_epochs=3", "scheduler.warmup_epochs=1", "filter=target_pow"]
    options += ["trainer=ddp", "trainer.accelerator=cpu", "batch_size=8"]
    two = [*options, "trainer.devices=1", "trainer.num_nodes=2"]
    path = tmp_path / "job.sh"
    path.write_text(
        "#!/bin/bash\n#SBATCH --job-name=pretrain --nodes=2 --ntasks-per-node=1\n"
        f"#SBATCH --output={tmp_path}/said.txt\n"
        "export MASTER_ADDR=127.0.0.1\n"  # the nodes' names are SLURM's alone
        f"export PYTHONPATH={ROOT}:{os.environ.get('PYTHONPATH', '')} OMP_NUM_THREADS=1\n"
        f"exec srun {sys.executable} -m rdm_solo.train {' '.join(two)}\n"
    )
    job = slurm.submit(path, tmp_path)
    slurm.wait(job, "COMPLETED", "FAILED")
    said = (tmp_path / "said.txt").read_text()
    assert slurm.state(job)["JobState"] == "COMPLETED", said[-3000:]
    assert slurm.state(job)["NumNodes"] == "2"
    one = [*options, "trainer.devices=2", "hydra.run.dir=one"]
    assert command("rdm_solo.train", *one, cwd=tmp_path).returncode == 0
    (table,) = tmp_path.glob("runs/*/metrics.csv")
    assert table.read_bytes() == (tmp_path / "one" / "metrics.csv").read_bytes()
    assert json.loads((table.parent / "summary.json").read_text())["processes"] == 2
    assert said.count("simsiam, target_pow, p=-0.5") == 1


@pytest.mark.long
@pytest.mark.process
def test_a_requeued_job_ends_as_the_uninterrupted_one(slurm, tmp_path):
    """By kill -9, by SLURM's own requeue (SIGTERM), and by USR1; default folder and typed one."""
    draw = draws(DRILL)
    (tmp_path / "whole").mkdir()
    whole = slurm.submit(script(tmp_path / "whole", "hydra.run.dir=run"), tmp_path / "whole")
    slurm.wait(whole, "COMPLETED", "FAILED")
    table = (tmp_path / "whole" / "run" / "metrics.csv").read_bytes()
    number, survived = tries(3, 6), 0
    for attempt in range(number):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        typed = ["hydra.run.dir=run"] if attempt % 2 else []
        how = ("killed", "requeued", "warned")[attempt // 2 % 3]
        state, said = interrupted(slurm, folder, typed, how, draw.randrange(EPOCHS - 5))
        (found,) = folder.rglob("metrics.csv")
        again = "SLURM has started job" in said
        survived += again and state == "COMPLETED" and found.read_bytes() == table
        print(how, typed, state, again, found.read_bytes() == table, said[-600:])
    record(DRILL, number, survived)


def interrupted(slurm, folder: Path, typed: list[str], how: str, epoch: int) -> tuple[str, str]:
    """The state of the job in the end, and what it has said, after it was started again."""
    job, said = slurm.submit(script(folder, *typed), folder), folder / "said.txt"
    line = f"epoch {epoch}/{EPOCHS}" if epoch else "simsiam, learnable"
    cluster.until(lambda: said.exists() and line in said.read_text())
    if how == "killed":
        os.kill(process_in(folder), signal.SIGKILL)
        slurm.wait(job, "FAILED")
        slurm.start_again(job)
    elif how == "requeued":
        slurm.start_again(job)
    else:
        slurm.call("scancel", "--signal=USR1", job)
        slurm.start_again(job, requeue=False)
    slurm.wait(job, "COMPLETED", "FAILED")
    return slurm.state(job)["JobState"], said.read_text()


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
