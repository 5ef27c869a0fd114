"""Hydra plugin for ``launcher=local``: run a sweep's jobs in parallel, each on its devices."""

import itertools
import os
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn, JobStatus, configure_log
from hydra.plugins.launcher import Launcher
from omegaconf import open_dict

GPUS = "CUDA_VISIBLE_DEVICES"
THREADS = "OMP_NUM_THREADS"


@dataclass
class LocalLauncherConf:
    _target_: str = "hydra_plugins.rdm_solo_local_launcher.LocalLauncher"
    jobs: int | None = None  # parallel runs; null: one per GPU (or group of GPUs), or per core


store = ConfigStore.instance()
store.store(name="rdm_solo_local", node=LocalLauncherConf, group="hydra/launcher")


class LocalLauncher(Launcher):
    """Start each run in its own process as soon as a share of the devices is free."""

    def __init__(self, jobs: int | None = None) -> None:
        self.jobs = jobs

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:
        self.loader = hydra_context.config_loader
        self.config = config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        from rdm_solo.train import sweep

        hydra = self.config.hydra
        configure_log(hydra.hydra_logging, hydra.verbose)
        os.makedirs(hydra.sweep.dir, exist_ok=True)
        runs = len(job_overrides)
        shares = devices(self.config.trainer, self.jobs, runs)
        print(f"{runs} runs, {len(shares)} at once, in {hydra.sweep.dir}", flush=True)
        free = deque(shares)  # as many as the pool has threads

        def run(number: int, overrides: Sequence[str]) -> JobReturn:
            job = self.loader.load_sweep_config(self.config, list(overrides))
            with open_dict(job):
                # The name of the folder may depend on both.
                job.hydra.job.num = number
                job.hydra.job.id = str(number)
                folder = os.path.join(job.hydra.sweep.dir, job.hydra.sweep.subdir)
                job.hydra.runtime.output_dir = os.path.abspath(folder)
            share = free.popleft()
            try:
                value = sweep.start(job.hydra, job.optimized_metric, share)
            finally:
                free.append(share)
            return JobReturn(
                overrides=overrides,
                _return_value=value,
                status=JobStatus.COMPLETED,
            )

        numbers = itertools.count(initial_job_idx)
        try:
            with ThreadPoolExecutor(len(shares)) as pool:
                return list(pool.map(run, numbers, job_overrides))
        except KeyboardInterrupt:
            sweep.announce_resume(hydra.sweep.dir)
            raise


def devices(trainer: Any, jobs: int | None, runs: int) -> list[dict[str, str]]:
    """Return environment variables that assign GPUs or threads, one dict for each parallel run."""
    import torch

    from rdm_solo.train.processes import on_cpu, world_size

    processes = world_size(trainer)
    if on_cpu(trainer):
        cores = os.cpu_count() or 1
        if hasattr(os, "sched_getaffinity"):  # a container or SLURM may allow fewer
            cores = len(os.sched_getaffinity(0))
        most = max(1, cores // processes)
        parallel = min(jobs or most, runs)
        if THREADS in os.environ:
            return [{}] * parallel
        threads = max(1, cores // (parallel * processes))
        return [{THREADS: str(threads)}] * parallel

    visible = os.environ.get(GPUS)
    if not visible:
        numbers = range(torch.cuda.device_count())
        visible = ",".join(map(str, numbers))
    gpus = visible.split(",")
    groups = max(1, len(gpus) // processes)  # one if there are too few, whose run says so
    parallel = min(jobs or groups, runs)
    shares = []
    for i in range(parallel):
        first = i % groups * processes
        group = gpus[first : first + processes]
        shares.append({GPUS: ",".join(group)})
    return shares
