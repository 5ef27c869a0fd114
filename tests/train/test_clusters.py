"""Sweeps and runs on a real SLURM and on Ray, started on this machine."""

import shlex
import sys
from pathlib import Path

import pytest
from conftest import ROOT, command, start
from support.cluster import wait_until
from support.small_runs import SMALL, rows

RUN = [*SMALL, "filter=target_pow", "scheduler.warmup_epochs=1"]
RUN += ["trainer.enable_progress_bar=false"]
SWEEP = ["-m", *RUN, "max_epochs=1", "p=-1,-0.5", "hydra.sweep.dir=sweep"]
SLURM = ["launcher=slurm", "hydra.launcher.cpus_per_task=1"]

pytestmark = [pytest.mark.long, pytest.mark.process]


@pytest.mark.parametrize("launcher", ["slurm", "ray"])
def test_a_sweep_gives_the_same_runs_as_without_a_cluster(launcher, tmp_path, request):
    options = [f"launcher={launcher}"]
    variables = {}
    if launcher == "ray":
        pytest.importorskip("ray")
    else:
        variables = request.getfixturevalue("slurm").variables
        options = SLURM
    check_sweep(tmp_path / "basic", "launcher=basic")
    check_sweep(tmp_path / launcher, *options, **variables)
    paths = list((tmp_path / "basic").glob("sweep/*/metrics.csv"))
    assert len(paths) == 2
    for path in paths:
        table = tmp_path / launcher / path.relative_to(tmp_path / "basic")
        assert table.read_bytes() == path.read_bytes()


def check_sweep(folder: Path, *options: str, **variables: str) -> None:
    folder.mkdir()
    out = command("rdm_solo.train", *SWEEP, *options, cwd=folder, **variables)
    assert out.returncode == 0, out.stderr
    assert "σ^-0.5" in out.stdout


def test_a_sweep_s_job_that_reaches_its_time_limit_resumes(slurm, tmp_path):
    """Submitit requeues the job until the run has finished."""
    options = ["-m", *RUN, "max_epochs=1800", "diagnostics.every_n_epochs=0", "p=-1", *SLURM]
    options += ["hydra.launcher.timeout_min=2", "hydra.launcher.signal_delay_s=30"]
    options += ["hydra.sweep.dir=sweep"]
    sweep = start("rdm_solo.train", *options, cwd=tmp_path, **slurm.variables)
    wait_until(lambda: bool(slurm.jobs()))
    (job,) = slurm.jobs()

    def finished() -> bool:
        if slurm.jobs() and slurm.state(job) == "PENDING":
            slurm.start_now(job)
        return sweep.poll() is not None

    try:
        wait_until(finished, 900)
    finally:
        sweep.kill()
    assert sweep.returncode == 0
    (folder,) = (tmp_path / "sweep").glob("0_*")
    assert len(rows(folder)) == 1800
    assert "resuming after epoch" in (folder / "train.log").read_text()


def test_a_batch_job_on_two_nodes_that_is_warned_of_its_limit_resumes(slurm, tmp_path):
    """Submit the script of docs/many-gpus.md, on CPUs."""
    options = [*RUN, "max_epochs=100", "checkpoint.every_n_epochs=1", "batch_size=8"]
    options += ["trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=1"]
    srun = f"srun {sys.executable} -m rdm_solo.train {shlex.join(options)}"
    script = tmp_path / "pretrain.sbatch"

    def finish(name: str, interrupted: bool) -> list[dict[str, float]]:
        script.write_text(
            "#!/bin/bash\n"
            "#SBATCH --nodes=2 --ntasks-per-node=1 --requeue --open-mode=append\n"
            f"#SBATCH --output={tmp_path / name}.txt\n"
            f"export PYTHONPATH={ROOT} OMP_NUM_THREADS=1 MASTER_ADDR=127.0.0.1\n"
            "trap 'scontrol requeue $SLURM_JOB_ID' USR1\n"
            f"{srun} trainer.num_nodes=2 hydra.run.dir={name} &\n"
            "wait\n"
        )
        job = slurm.call("sbatch", "--parsable", str(script), cwd=tmp_path)
        output = tmp_path / f"{name}.txt"
        if interrupted:
            wait_until((tmp_path / name / "checkpoints" / "last.ckpt").exists)
            slurm.call("scancel", "--batch", "--signal=USR1", job)
            wait_until(lambda: slurm.state(job) == "PENDING")
            slurm.start_now(job)
        wait_until(lambda: slurm.state(job) in ("COMPLETED", "FAILED"))
        assert slurm.state(job) == "COMPLETED", output.read_text()[-3000:]
        assert ("resuming after epoch" in output.read_text()) is interrupted
        return rows(tmp_path / name)

    assert finish("run", interrupted=True) == finish("uninterrupted", interrupted=False)
