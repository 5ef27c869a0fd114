"""launcher=local: which devices each run gets, and how many runs train at once."""

import os
import threading
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from hydra_plugins.rdm_solo_local_launcher import LocalLauncher, devices
from rdm_solo.train import sweep

TRAINER = {"accelerator": "gpu", "devices": 1, "num_nodes": 1}


@pytest.mark.parametrize(
    ("processes", "jobs", "runs", "expected"),
    [
        (1, None, 9, ["4", "6", "7"]),
        (1, None, 1, ["4"]),
        (1, 4, 9, ["4", "6", "7", "4"]),  # more jobs than GPUs share them
        (2, None, 9, ["4,6"]),
        (4, None, 9, ["4,6,7"]),  # too few GPUs: the run itself refuses
    ],
)
def test_each_run_gets_its_gpus(processes, jobs, runs, expected, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6,7")
    trainer = OmegaConf.create({**TRAINER, "devices": processes})
    shares = devices(trainer, jobs, runs)
    assert [share["CUDA_VISIBLE_DEVICES"] for share in shares] == expected


@pytest.mark.parametrize(
    ("cores", "jobs", "runs", "threads"),
    [(8, None, 3, ["2", "2", "2"]), (2, None, 5, ["1", "1"]), (4, 1, 5, ["4"])],
)
def test_the_runs_divide_the_cores_unless_the_user_has_set_the_threads(
    cores, jobs, runs, threads, monkeypatch
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(cores))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    trainer = OmegaConf.create({**TRAINER, "accelerator": "cpu"})
    shares = devices(trainer, jobs, runs)
    assert [share["OMP_NUM_THREADS"] for share in shares] == threads
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert devices(trainer, jobs, runs) == [{}] * len(threads)


def test_two_jobs_run_at_once_on_different_gpus(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    both_started = threading.Barrier(2, timeout=20)
    busy = set()
    used = set()

    def start(hydra, metric, starter, share):
        gpu = share["CUDA_VISIBLE_DEVICES"]
        assert gpu not in busy
        busy.add(gpu)
        used.add(gpu)
        both_started.wait()
        busy.remove(gpu)
        return hydra.job.num

    monkeypatch.setattr(sweep, "start", start)
    hydra = {
        "hydra_logging": None,
        "verbose": False,
        "sweep": {"dir": str(tmp_path), "subdir": "run_${hydra.job.num}"},
        "job": {},
        "runtime": {},
    }
    config = {"trainer": TRAINER, "optimized_metric": "train/loss", "hydra": hydra}
    loader = SimpleNamespace(load_sweep_config=lambda config, overrides: config.copy())
    launcher = LocalLauncher()
    context = SimpleNamespace(config_loader=loader)
    launcher.setup(hydra_context=context, task_function=None, config=OmegaConf.create(config))
    results = launcher.launch([["p=-1"], ["p=0"], ["p=1"], ["p=2"]], initial_job_idx=0)
    assert [result.return_value for result in results] == [0, 1, 2, 3]
    assert used == {"4", "6"}
