"""What each ``launcher=...`` does with the runs of a sweep."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus, configure_log, run_job
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from rdm_solo import cli
from rdm_solo.cli import torchrun
from rdm_solo.messages import UserError, check_whole
from rdm_solo.train import environment, sweep
from rdm_solo.train.launchers import plan
from rdm_solo.train.launchers.plan import Job

log = logging.getLogger("rdm_solo")


class CheckLauncher(Callback):
    """Hydra's callback that refuses a launcher's options before the sweep has a folder."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        with cli.sentences():
            check_alone()
            if "launcher" in config:
                check(config.launcher, config.trainer)


def check_alone() -> None:
    """Refuse to start the runs of a sweep from one of several equal processes."""
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    if torchrun.started() or tasks != "1":
        raise UserError(
            "a sweep starts the processes of its runs itself: leave torchrun or srun out, and add "
            "launcher=local for several runs at once."
        )


def check(launcher: DictConfig, trainer: DictConfig) -> None:
    """Refuse, in a sentence, what the launcher could not use."""
    if launcher.get("jobs") is not None:
        check_whole(
            "launcher.jobs", launcher.jobs, 1, alternative="null for the launcher's default"
        )
    if launcher.name != "basic":
        _module(launcher).check(launcher, trainer)


def _module(launcher: DictConfig) -> Any:
    """Where the launcher's ``check`` and ``run`` are."""
    from rdm_solo.train.launchers import local, ray, slurm

    # With basic, what is left of a sweep is run in processes, too: each reads its own config.
    return {"basic": local, "local": local, "ray": ray, "slurm": slurm}[launcher.name]


def planned(
    context: Any, config: DictConfig, job_overrides: Sequence[Sequence[str]], first: int
) -> list[Job]:
    """The jobs that Hydra asks a launcher for, once their configs are written down."""
    configure_log(config.hydra.job_logging, config.hydra.verbose)
    jobs = plan.compose(context.config_loader, config, job_overrides, first)
    with cli.sentences():
        plan.check_together(jobs, config)
        for job in jobs:  # whose devices may be swept over
            check(config.launcher, job.config.trainer)
        return [plan.write(job, Path(config.hydra.sweep.dir)) for job in jobs]


def start(
    context: Any, task_function: Any, config: DictConfig, jobs: Sequence[Job]
) -> list[JobReturn]:
    """Run the jobs of a sweep as ``launcher.name`` says; Hydra's callbacks hear of each one."""
    cli.mark_started()  # what goes wrong from here on is no answer to what was typed
    if config.launcher.name == "basic":
        return _in_this_process(context, task_function, config, jobs)
    folder = Path(config.hydra.sweep.dir)
    reasons = elsewhere(jobs, folder, config.launcher)
    # A job that was only submitted has no status that Hydra would accept.
    status = JobStatus.UNKNOWN if reasons is None else JobStatus.COMPLETED
    return [_ended(context, job, (reasons or {}).get(job.folder), status) for job in jobs]


def _ended(
    context: Any, job: Job, reason: str | None, status: JobStatus = JobStatus.COMPLETED
) -> JobReturn:
    """Tell Hydra's callbacks that the job has ended, and why it failed if its folder does not."""
    failed = None if reason is None else f"failed: {job.name}: {reason}"
    result = JobReturn(cfg=job.config, status=status, _return_value=failed)
    context.callbacks.on_job_end(config=job.hydra, job_return=result)
    result.status = JobStatus.COMPLETED
    return result


def _in_this_process(
    context: Any, task_function: Any, config: DictConfig, jobs: Sequence[Job]
) -> list[JobReturn]:
    """Run the jobs one after the other."""
    results = []
    for number, job in enumerate(jobs, 1):
        log.info(f"\nrun {number} of {len(jobs)}: {' '.join(job.options)}")
        try:
            job.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = f"{job.folder} cannot be written ({error.strerror})"
            log.error(f"error: {reason}")
            results.append(_ended(context, job, reason))
            continue
        os.environ[environment.NOTES] = "\n".join(job.notes)
        results.append(
            run_job(
                hydra_context=context,
                task_function=task_function,
                config=job.hydra,
                job_dir_key="hydra.sweep.dir",
                job_subdir_key="hydra.sweep.subdir",
            )
        )
        configure_log(config.hydra.job_logging, config.hydra.verbose)  # its train.log is closed
    return results


def elsewhere(jobs: Sequence[Job], folder: Path, launcher: DictConfig) -> dict[Path, str] | None:
    """Run the jobs of the sweep in that folder, each in a process of its own.

    Returns, by folder, the reason of each failed run that left none in its folder; None where the
    jobs were only submitted.
    """
    if not jobs:
        return {}
    with cli.sentences():
        try:
            reasons: dict[Path, str] | None = _module(launcher).run(jobs, folder, launcher)
        except KeyboardInterrupt:
            if launcher.name != "slurm":  # whose jobs go on
                sweep.tell(folder, stopped=True)
            raise
        return reasons
