"""Jobs of a real SLURM: of two nodes, with loggers, with a time limit, and none at all."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from conftest import command
from support import cluster
from support.fake_wandb import Server
from support.read_loggers import events, shown_steps, sync
from support.small_runs import SMALL, rows, run
from support.without_batch_norm import WithoutBatchNorm

pytestmark = pytest.mark.process
OPTIONS = [*SMALL, "scheduler.warmup_epochs=1"]


def _two(rank: int, world: int, folder: str, options: list[str]) -> None:
    """One of a run's processes, as Lightning's own launcher would have started it."""
    variables = {"LOCAL_RANK": str(rank), "NODE_RANK": "0", "WORLD_SIZE": str(world)}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        run(Path(folder), *options, callbacks=[WithoutBatchNorm()])


@pytest.mark.parametrize(
    "chosen", ["target_pow", pytest.param("online_pow", marks=pytest.mark.long)]
)
def test_a_job_of_two_nodes_is_one_run(chosen, slurm, worlds, tmp_path):
    """To the bit that of two processes on one node; and, without batch norm, to rounding that of
    one process on the whole batch: filter, loss, gradients, learning rate and views are shared."""
    options = [*OPTIONS, "max_epochs=3", f"filter={chosen}"]
    several = ["batch_size=8", "trainer=ddp", "trainer.accelerator=cpu"]
    norm = "+callbacks.norm._target_=support.without_batch_norm.WithoutBatchNorm"
    nodes = [*options, *several, "trainer.devices=1", "trainer.num_nodes=2", norm]
    asked = "--nodes=2 --ntasks-per-node=1"
    # The nodes' names are SLURM's alone.
    said = slurm.run(cluster.script(tmp_path, nodes, asked, MASTER_ADDR="127.0.0.1"))
    assert said.count(f"simsiam, {chosen}, p=") == 1
    (folder,) = tmp_path.glob("runs/*")
    assert json.loads((folder / "summary.json").read_text())["processes"] == 2

    worlds(2).run(_two, str(tmp_path / "two"), [*options, *several, "trainer.devices=2"])
    tables = [place / "metrics.csv" for place in (folder, tmp_path / "two")]
    assert tables[0].read_bytes() == tables[1].read_bytes()

    run(tmp_path / "one", *options, "batch_size=16", callbacks=[WithoutBatchNorm()])
    losses, weights = [], []
    for place in (folder, tmp_path / "one"):
        losses.append([row["train/loss"] for row in rows(place)])
        saved = torch.load(place / "checkpoints" / "last.ckpt", weights_only=True)
        weights.append(saved["state_dict"])
    # Measured: losses differ by at most 1.2e-7.
    assert losses[0] == pytest.approx(losses[1], rel=0, abs=1e-5)
    torch.testing.assert_close(*weights, rtol=0, atol=1e-5)


@pytest.mark.long
def test_loggers_of_a_requeued_job_hold_one_run(slurm, tmp_path):
    """Each epoch stands in both once, at its own step, although SLURM has ended W&B's own process
    before the run could tell it to write what it held."""
    pytest.importorskip("tensorboard")
    pytest.importorskip("wandb")
    options = [*OPTIONS, "max_epochs=12", "trainer=cpu", "hydra.run.dir=run"]
    options += ["logger=[tensorboard,wandb]", "logger.wandb.offline=true"]
    options += ["+callbacks.slow._target_=support.slow_start.SlowStart", "+callbacks.slow.epoch=5"]
    job = slurm.submit(cluster.script(tmp_path, options, "--requeue --ntasks=1"), tmp_path)
    folder = tmp_path / "run"
    slurm.has_said(job, tmp_path, "epoch 4/12")
    slurm.start_again(job)
    text = slurm.completed(job, tmp_path)
    assert "its run goes on in" in text
    steps, shown = [4 * epoch + 3 for epoch in range(12)], events(folder / "tensorboard")
    for name in ("erank/gap", "train/loss", "val/knn_acc1"):
        assert [step for step, _ in shown[name]] == steps
    assert shown_steps(folder / "tensorboard", "erank/gap") == steps

    assert len(list(folder.glob("wandb/offline-run-*"))) == 2
    server = Server()
    sync(server, re.findall("to send it: wandb sync (.*)", text)[-1].split())
    (name,) = server.runs
    assert name == json.loads((folder / "loggers.json").read_text())["wandb"]["id"]
    sent = server.rows(name)
    assert [row["_step"] for row in sent] == list(range(len(sent)))
    for key in ("erank/gap", "train/loss", "val/knn_acc1"):
        of_key = [row for row in sent if key in row]
        assert [row["trainer/global_step"] for row in of_key] == steps
        assert [row["epoch"] for row in of_key] == list(range(1, 13))
        assert [row[key] for row in of_key] == pytest.approx([row[key] for row in rows(folder)])


@pytest.mark.long
def test_slurms_own_warning_before_a_time_limit_requeues_the_job(slurm, tmp_path):
    """SLURM measures in minutes, and warns up to one too early."""
    options = [*OPTIONS, "max_epochs=6", "trainer=cpu"]
    options += ["+callbacks.slow._target_=support.slow_start.SlowStart", "+callbacks.slow.epoch=4"]
    asked = "--requeue --ntasks=1 --time=1 --signal=USR1@20"
    job = slurm.submit(cluster.script(tmp_path, options, asked), tmp_path)
    slurm.has_said(job, tmp_path, "USR1: SLURM will start job")
    slurm.start_again(job, requeue=False)
    text = slurm.completed(job, tmp_path)
    assert re.search(rf"SLURM has started job {job} again: its run goes on in", text)
    assert [text.count(f"epoch {epoch}/6") for epoch in range(1, 7)] == [1] * 6
    (folder,) = tmp_path.glob("runs/*")
    assert json.loads((folder / "summary.json").read_text())["stopped"] is None


@pytest.mark.long
@pytest.mark.parametrize("where", ["login node", "job without srun"])
def test_nothing_is_said_about_srun_to_who_has_not_asked(slurm, tmp_path, where):
    options = [*OPTIONS, "max_epochs=1", "hydra.run.dir=run"]
    if where == "login node":
        told = {**slurm.variables, "PYTHONWARNINGS": ""}
        out = command("rdm_solo.train", *options, cwd=tmp_path, **told)
        assert out.returncode == 0, out.stderr
        assert out.stderr == ""
        said = out.stdout
    else:
        script = cluster.script(tmp_path, options, "--ntasks=1", start="", PYTHONWARNINGS="")
        said = slurm.run(script)
    for text in (said, (tmp_path / "run" / "train.log").read_text()):
        assert "warning" not in text.lower()
        assert "srun" not in text
        assert "SLURM" not in text
