"""Sweeps: each run is a command of its own, under Hydra's launchers and ours."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT, command
from omegaconf import OmegaConf
from support.small_runs import SMALL, rows

from hydra_plugins.rdm_solo_local_launcher import devices
from rdm_solo.train import sweep

RUN = [*SMALL, "filter=target_pow", "max_epochs=1", "trainer.enable_progress_bar=false"]

pytestmark = pytest.mark.process


def losses(folder: Path) -> dict[str, float]:
    """Return the last loss of each run in a sweep's folder."""
    tables = sorted(folder.glob("*/metrics.csv"))
    return {path.parent.name: rows(path.parent)[-1]["train/loss"] for path in tables}


@pytest.fixture(scope="module")
def basic(tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A sweep of two runs and one that is refused."""
    folder = tmp_path_factory.mktemp("sweep")
    out = command(
        *("rdm_solo.train", "-m", *RUN, "p=-1,-0.5,abc", "launcher=local"),
        "hydra.sweep.dir=sweep",
        cwd=folder,
    )
    return folder / "sweep", out


def test_a_failed_run_does_not_stop_the_others(basic):
    folder, out = basic
    assert out.returncode == 1
    assert "σ^-1 " in out.stdout
    assert "failed: 2_simsiam_target_pow_p=abc: p must be a number" in out.stdout
    assert len(losses(folder)) == 2


@pytest.mark.parametrize(
    "launcher", ["launcher=basic", "hydra/launcher=joblib", "hydra/launcher=submitit_local"]
)
def test_every_launcher_gives_the_same_run(launcher, basic, tmp_path):
    out = command(
        "rdm_solo.train", "-m", *RUN, "p=-1", launcher, "hydra.sweep.dir=sweep", cwd=tmp_path
    )
    assert out.returncode == 0, out.stderr
    name = "0_simsiam_target_pow_p=-1"
    assert losses(tmp_path / "sweep") == {name: losses(basic[0])[name]}
    assert "σ^-1 " in out.stdout


def test_a_sweep_that_is_submitted_again_runs_what_is_left(basic):
    folder, _ = basic
    expected = losses(folder)
    shutil.rmtree(folder / "0_simsiam_target_pow_p=-1")
    kept = folder / "1_simsiam_target_pow_p=-0.5" / "metrics.csv"
    written = kept.stat().st_mtime_ns
    out = command("rdm_solo.train", f"resume={folder}", cwd=folder.parent)
    assert "failed: 2_simsiam_target_pow_p=abc" in out.stdout
    assert kept.stat().st_mtime_ns == written
    assert losses(folder) == expected


def test_a_stranger_s_sweep_runs_nothing_of_its_own(basic, tmp_path, typed):
    for number, option in enumerate(
        ["+callbacks.mine._target_=os.system", "filter.function=os.system,pow"]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        values = OmegaConf.load(basic[0] / "multirun.yaml")
        values.hydra.overrides.task = [*RUN, option]
        OmegaConf.save(values, folder / "multirun.yaml")
        out = typed("rdm_solo.train", f"resume={folder}", cwd=tmp_path)
        assert (out.returncode, out.stderr[:7]) == (2, "error: "), out
        assert [path.name for path in folder.iterdir()] == ["multirun.yaml"]
    folder = tmp_path / "links"
    folder.mkdir()
    (tmp_path / "outside").mkdir()
    values.hydra.overrides.task = [*RUN, "p=-1"]
    OmegaConf.save(values, folder / "multirun.yaml")
    (folder / "0_simsiam_target_pow_p=-1").symlink_to(tmp_path / "outside")
    out = typed("rdm_solo.train", f"resume={folder}", cwd=tmp_path)
    assert (out.returncode, "leads out" in out.stderr) == (2, True), out
    assert not list((tmp_path / "outside").iterdir())


def test_a_run_returns_its_metric_to_hydra_s_sweepers(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    output = tmp_path / "sweep" / "0"
    runtime = {"output_dir": str(output), "cwd": str(tmp_path), "config_sources": []}
    overrides, folder = {"task": [*RUN, "p=-1"]}, {"dir": str(output.parent)}
    job = OmegaConf.create({"overrides": overrides, "runtime": runtime, "sweep": folder})
    assert sweep.start(job, "val/knn_acc1") == rows(output)[-1]["val/knn_acc1"]


@pytest.mark.parametrize(
    ("cores", "jobs", "runs", "threads"),
    [(8, None, 3, ["2"] * 3), (2, None, 5, ["1"] * 2), (4, 1, 5, ["4"])],
)
def test_local_divides_the_cores(cores, jobs, runs, threads, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(cores))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    trainer = OmegaConf.create({"accelerator": "cpu", "devices": 1, "num_nodes": 1})
    assert [share["OMP_NUM_THREADS"] for share in devices(trainer, jobs, runs)] == threads


def test_local_divides_the_gpus(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2,3,5,7")
    trainer = OmegaConf.create({"accelerator": "gpu", "devices": 2, "num_nodes": 1})
    shares = devices(trainer, None, 9)
    assert [share["CUDA_VISIBLE_DEVICES"] for share in shares] == ["0,2", "3,5"]
