"""launcher=local: which devices each run gets, and how many runs train at once."""

import os
import threading

import pytest
from omegaconf import OmegaConf

from hydra_plugins.rdm_solo_local_launcher import devices
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


def test_two_jobs_run_at_once_on_different_gpus(train, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    both_started = threading.Barrier(2, timeout=20)
    busy = set()
    used = []

    def start(hydra, metric, share):
        gpu = share["CUDA_VISIBLE_DEVICES"]
        assert gpu not in busy
        busy.add(gpu)
        used.append(gpu)
        both_started.wait()
        busy.remove(gpu)
        return 0.0

    monkeypatch.setattr(sweep, "start", start)
    options = ["launcher=local", "trainer=gpu", "seed=0,1,2,3", "hydra.sweep.dir=sweep"]
    out = train("-m", *options)
    assert out.returncode == 0, out.stderr
    assert sorted(used) == ["4", "4", "6", "6"]
