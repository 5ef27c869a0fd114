"""Sweeps: each run is a command of its own, under Hydra's launchers and ours."""

import functools
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT, command
from omegaconf import OmegaConf
from support.small_runs import SMALL, rows

from hydra_plugins.rdm_solo_local_launcher import devices
from rdm_solo.train import sweep

RUN = [*SMALL, "filter=target_pow", "max_epochs=1", "trainer.enable_progress_bar=false"]
FIRST = "0_simsiam_target_pow_p=-1_seed=0"

pytestmark = pytest.mark.process


def losses(folder: Path) -> dict[str, float]:
    """Return the last loss of each run in a sweep's folder."""
    tables = sorted(folder.glob("*/metrics.csv"))
    return {path.parent.name: rows(path.parent)[-1]["train/loss"] for path in tables}


@pytest.fixture(scope="module")
def sweep_folder(tmp_path_factory) -> Path:
    """Return the folder of a sweep of a run and one that is refused."""
    cwd = tmp_path_factory.mktemp("sweep")
    options = [*RUN, "p=-1", "knn.k=5,9999", "launcher=local", "hydra.sweep.dir=sweep"]
    options.append("hydra/job_logging=default")  # a file in the folder of each run
    out = command("rdm_solo.train", "-m", *options, cwd=cwd)
    assert out.returncode == 1
    assert "σ^-1 " in out.stdout
    assert "failed: 1_simsiam_target_pow_p=-1_seed=0: knn.k=9999" in out.stdout
    assert "Starting simsiam" in (cwd / "sweep" / FIRST / "rdm_solo.log").read_text()
    return cwd / "sweep"


@pytest.fixture
def submitted(typed, monkeypatch) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Submit a sweep from this process; its runs are processes."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return functools.partial(typed, "rdm_solo.train")


@pytest.mark.parametrize(
    "launcher", ["joblib", pytest.param("submitit_local", marks=pytest.mark.long)]
)
def test_every_launcher_gives_the_same_run(launcher, sweep_folder, tmp_path, submitted):
    options = [*RUN, "p=-1", "knn.k=5", f"hydra/launcher={launcher}", "hydra.sweep.dir=sweep"]
    out = submitted("-m", *options, cwd=tmp_path)
    assert out.returncode == 0, out.stderr
    assert losses(tmp_path / "sweep") == {FIRST: losses(sweep_folder)[FIRST]}
    assert "σ^-1 " in out.stdout


def test_a_sweep_that_is_submitted_again_trains_what_is_left_by_any_launcher(
    sweep_folder, submitted, monkeypatch
):
    expected, kept = losses(sweep_folder), sweep_folder / FIRST / "metrics.csv"
    written = kept.stat().st_mtime_ns
    metrics = []

    def start(*arguments):
        metrics.append(sweep_start(*arguments))
        return metrics[-1]

    sweep_start = sweep.start
    monkeypatch.setattr(sweep, "start", start)
    options = ["-m", "p=-1,-0.5", "knn.k=5", "launcher=basic", "optimized_metric=train/loss"]
    out = submitted(f"resume={sweep_folder}", *options, cwd=sweep_folder.parent)
    assert "failed: 1_simsiam_target_pow_p=-1_seed=0" in out.stdout
    assert kept.stat().st_mtime_ns == written
    assert losses(sweep_folder).items() > expected.items()
    assert metrics == list(losses(sweep_folder).values()), "for Hydra's sweepers"


def test_a_stranger_s_sweep_runs_nothing_of_its_own(sweep_folder, tmp_path, typed):
    values = OmegaConf.load(sweep_folder / "multirun.yaml")

    def refusal(name: str, *options: str) -> str:
        """Return how a sweep's folder that records other options is refused."""
        values.hydra.overrides.task = [*RUN, *options]
        (tmp_path / name).mkdir(exist_ok=True)
        OmegaConf.save(values, tmp_path / name / "multirun.yaml")
        out = typed("rdm_solo.train", f"resume={name}", cwd=tmp_path)
        assert (out.returncode, out.stderr[:7]) == (2, "error: "), out
        return out.stderr

    refusal("callback", "+callbacks.mine._target_=os.system")
    refusal("function", "filter.function=os.system,pow")
    for name in ("callback", "function"):
        assert [path.name for path in (tmp_path / name).iterdir()] == ["multirun.yaml"]
    for name in ("links", "outside"):
        (tmp_path / name).mkdir()
    (tmp_path / "links" / FIRST).symlink_to(tmp_path / "outside")
    assert "leads out" in refusal("links", "p=-1")
    assert not list((tmp_path / "outside").iterdir())


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
