"""A sweep starts each run as a command, under Hydra's launchers and ours."""

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
    last = {}
    for path in sorted(folder.glob("*/metrics.csv")):
        last[path.parent.name] = rows(path.parent)[-1]["train/loss"]
    return last


@pytest.fixture(scope="module")
def sweep_folder(tmp_path_factory) -> Path:
    """Return the folder of a sweep of two runs, of which the second one is refused."""
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
def submitted(train, monkeypatch) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Submit a sweep from this process. Its runs are other processes."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    return train


@pytest.mark.parametrize(
    "launcher", ["joblib", pytest.param("submitit_local", marks=pytest.mark.long)]
)
def test_every_launcher_gives_the_same_run(launcher, sweep_folder, tmp_path, submitted):
    options = [*RUN, "p=-1", "knn.k=5", f"hydra/launcher={launcher}", "hydra.sweep.dir=sweep"]
    out = submitted("-m", *options)
    assert out.returncode == 0, out.stderr
    assert losses(tmp_path / "sweep") == {FIRST: losses(sweep_folder)[FIRST]}
    assert "σ^-1 " in out.stdout


def test_a_resumed_sweep_trains_only_the_missing_runs_and_returns_every_metric(
    sweep_folder, submitted, monkeypatch
):
    """Hydra's sweepers read the metrics."""
    before = losses(sweep_folder)
    table = sweep_folder / FIRST / "metrics.csv"
    written = table.stat().st_mtime_ns
    metrics = []
    start_run = sweep.start

    def start(*arguments):
        metric = start_run(*arguments)
        metrics.append(metric)
        return metric

    monkeypatch.setattr(sweep, "start", start)
    options = ["-m", "p=-1,-0.5", "knn.k=5", "launcher=basic", "optimized_metric=train/loss"]
    out = submitted(f"resume={sweep_folder}", *options)
    assert "failed: 1_simsiam_target_pow_p=-1_seed=0" in out.stdout
    assert table.stat().st_mtime_ns == written
    assert losses(sweep_folder).items() > before.items()
    assert metrics == list(losses(sweep_folder).values())


@pytest.fixture
def refused(sweep_folder, tmp_path, train) -> Callable[[str], str]:
    """Resume a stranger's folder whose sweep has another option, and return the error."""
    folder = tmp_path / "sweep"
    folder.mkdir()

    def resume(option: str) -> str:
        values = OmegaConf.load(sweep_folder / "multirun.yaml")
        values.hydra.overrides.task = [*RUN, option]
        OmegaConf.save(values, folder / "multirun.yaml")
        out = train("resume=sweep")
        assert out.returncode == 2
        assert out.stderr.startswith("error: ")
        return out.stderr

    return resume


@pytest.mark.parametrize(
    "option", ["+callbacks.mine._target_=os.system", "filter.function=os.system,pow"]
)
def test_a_stranger_s_sweep_cannot_name_what_is_run(option, refused, tmp_path):
    refused(option)
    assert [path.name for path in tmp_path.rglob("*")] == ["sweep", "multirun.yaml"]


def test_a_stranger_s_sweep_writes_nothing_through_a_link(refused, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "sweep" / FIRST).symlink_to(tmp_path / "outside")
    assert "leads out" in refused("p=-1")
    assert not list((tmp_path / "outside").iterdir())


@pytest.mark.parametrize(
    ("cores", "jobs", "runs", "threads"),
    [(8, None, 3, ["2", "2", "2"]), (2, None, 5, ["1", "1"]), (4, 1, 5, ["4"])],
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
