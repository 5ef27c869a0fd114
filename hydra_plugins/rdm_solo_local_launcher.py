"""Hydra plugin for ``launcher=local``: run a sweep's jobs in parallel, each on its devices."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn, JobStatus, configure_log
from hydra.plugins.launcher import Launcher
from omegaconf import open_dict

GPUS, THREADS = "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"


@dataclass
class LocalLauncherConf:
    _target_: str = "hydra_plugins.rdm_solo_local_launcher.LocalLauncher"
    jobs: int | None = None  # parallel runs; null: one per GPU (or group of GPUs), or per core


ConfigStore.instance().store(
    group="hydra/launcher", name="rdm_solo_local", node=LocalLauncherConf, provider="rdm_solo"
)


class LocalLauncher(Launcher):
    """Start each run in its own process as soon as a share of the devices is free."""

    def __init__(self, jobs: int | None = None) -> None:
        self.jobs = jobs

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:
        self.context, self.config = hydra_context, config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        from rdm_solo.train import sweep

        hydra = self.config.hydra
        configure_log(hydra.hydra_logging, hydra.verbose)
        os.makedirs(hydra.sweep.dir, exist_ok=True)
        shares = devices(self.config.trainer, self.jobs, len(job_overrides))
        print(f"{len(job_overrides)} runs, {len(shares)} at once, in {hydra.sweep.dir}", flush=True)
        free: SimpleQueue[dict[str, str]] = SimpleQueue()
        for share in shares:
            free.put(share)

        def run(number: int, overrides: Sequence[str]) -> JobReturn:
            job = self._config(overrides, number)
            share = free.get()
            try:
                value = sweep.start(job.hydra, job.optimized_metric, share)
            finally:
                free.put(share)
            return JobReturn(overrides=overrides, _return_value=value, status=JobStatus.COMPLETED)

        with ThreadPoolExecutor(len(shares)) as pool:
            numbers = range(initial_job_idx, initial_job_idx + len(job_overrides))
            return list(pool.map(run, numbers, job_overrides))

    def _config(self, overrides: Sequence[str], number: int) -> Any:
        """Return the config of one run, with its number and its folder."""
        job = self.context.config_loader.load_sweep_config(self.config, list(overrides))
        hydra = job.hydra
        with open_dict(job):
            hydra.job.id = number
            hydra.job.num = number  # the name of the folder may depend on it
            folder = os.path.join(hydra.sweep.dir, hydra.sweep.subdir)
            hydra.runtime.output_dir = os.path.abspath(folder)
        return job


def devices(trainer: Any, jobs: int | None, runs: int) -> list[dict[str, str]]:
    """Return environment variables that assign GPUs or threads, one dict for each parallel run."""
    import torch

    from rdm_solo.train.processes import on_cpu, world_size

    processes = world_size(trainer)
    if on_cpu(trainer):
        cores = os.cpu_count() or 1
        if hasattr(os, "sched_getaffinity"):  # a container or SLURM may allow fewer
            cores = len(os.sched_getaffinity(0))
        parallel = min(jobs or max(1, cores // processes), runs)
        if THREADS in os.environ:
            return [{}] * parallel
        threads = max(1, cores // (parallel * processes))
        return [{THREADS: str(threads)}] * parallel

    visible = os.environ.get(GPUS) or ",".join(map(str, range(torch.cuda.device_count())))
    gpus = visible.split(",")
    groups = []
    for start in range(0, len(gpus) - processes + 1, processes):
        groups.append(",".join(gpus[start : start + processes]))
    if not groups:  # too few GPUs for one run, whose error says so
        groups = [visible]
    parallel = min(jobs or len(groups), runs)
    return [{GPUS: groups[i % len(groups)]} for i in range(parallel)]
