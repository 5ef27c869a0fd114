"""What each ``launcher=...`` does with the runs of a sweep."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus, configure_log, run_job
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from rdm_solo import cli
from rdm_solo.cli import torchrun
from rdm_solo.messages import check_whole
from rdm_solo.train import sweep
from rdm_solo.train.launchers import plan
from rdm_solo.train.launchers.plan import Job

log = logging.getLogger("rdm_solo")


class CheckLauncher(Callback):
    """Hydra's callback that refuses a launcher's options before the sweep has a folder."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        if torchrun.started():
            cli.fail(
                "a sweep starts the processes of its runs itself: leave torchrun out, and add "
                "launcher=local for several runs at once."
            )
        if "launcher" in config:
            with cli.sentences():
                check(config.launcher, config.trainer)


def check(launcher: DictConfig, trainer: DictConfig) -> None:
    """Refuse, in a sentence, what the launcher could not use."""
    if launcher.get("jobs") is not None:
        check_whole("launcher.jobs", launcher.jobs, 1, alternative="null for no limit of your own")
    if launcher.name == "local":
        from rdm_solo.train.launchers import local

        local.check(trainer)
    elif launcher.name == "slurm":
        from rdm_solo.train.launchers import slurm

        slurm.check(launcher, trainer)
    elif launcher.name == "ray":
        from rdm_solo.train.launchers import ray

        ray.check(launcher, trainer)


def planned(
    context: Any, config: DictConfig, job_overrides: Sequence[Sequence[str]], first: int
) -> list[Job]:
    """The jobs that Hydra asks a launcher for, once their configs are written down."""
    configure_log(config.hydra.job_logging, config.hydra.verbose)
    jobs = plan.compose(context.config_loader, config, job_overrides, first)
    with cli.sentences():
        plan.check_folders(jobs)
        return [plan.write(job, Path(config.hydra.sweep.dir)) for job in jobs]


def start(
    context: Any, task_function: Any, config: DictConfig, jobs: Sequence[Job]
) -> list[JobReturn]:
    """Run the jobs of a sweep as ``launcher.name`` says; Hydra's callbacks hear of each one."""
    if config.launcher.name == "basic":
        return _in_this_process(context, task_function, jobs)
    folder = Path(config.hydra.sweep.dir)
    try:
        reasons = elsewhere(jobs, folder, config.launcher)
    except KeyboardInterrupt:
        sweep.tell(folder, stopped=True)
        raise
    # A job that was only submitted has no status that Hydra would accept.
    status = JobStatus.UNKNOWN if reasons is None else JobStatus.COMPLETED
    results = []
    for job in jobs:
        reason = (reasons or {}).get(job.folder)
        said = None if reason is None else f"failed: {job.name}: {reason}"
        result = JobReturn(cfg=job.config, status=status, _return_value=said)
        context.callbacks.on_job_end(config=job.hydra, job_return=result)
        result.status = JobStatus.COMPLETED
        results.append(result)
    return results


def _in_this_process(context: Any, task_function: Any, jobs: Sequence[Job]) -> list[JobReturn]:
    """Run the jobs one after the other."""
    results = []
    for number, job in enumerate(jobs, 1):
        log.info(f"\nrun {number} of {len(jobs)}: {' '.join(job.options)}")
        results.append(
            run_job(
                hydra_context=context,
                task_function=task_function,
                config=job.hydra,
                job_dir_key="hydra.sweep.dir",
                job_subdir_key="hydra.sweep.subdir",
            )
        )
    return results


def elsewhere(jobs: Sequence[Job], folder: Path, launcher: DictConfig) -> dict[Path, str] | None:
    """Run the jobs of the sweep in that folder, each in a process of its own.

    The reasons of those that failed without leaving one in their folder, by folder; None where the
    jobs were only submitted.
    """
    from rdm_solo.train.launchers import local, ray, slurm

    ways: dict[str, Callable[..., dict[Path, str] | None]] = {
        "basic": local.run,
        "local": local.run,
        "ray": ray.run,
        "slurm": slurm.run,
    }
    if not jobs:
        return {}
    with cli.sentences():
        for job in jobs:
            check(launcher, job.config.trainer)
        return ways[launcher.name](jobs, folder, launcher)
