"""What each ``launcher=...`` does with the runs of a sweep."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus, configure_log, run_job
from omegaconf import DictConfig, OmegaConf

from rdm_solo import cli
from rdm_solo.messages import check_whole
from rdm_solo.runs.files import CONFIG
from rdm_solo.train import sweep
from rdm_solo.train.launchers import plan
from rdm_solo.train.launchers.plan import Job
from rdm_solo.train.run_folder import CONFIG_VARIABLE, FOLDER_VARIABLE

log = logging.getLogger("rdm_solo")


def planned(
    context: Any, config: DictConfig, job_overrides: Sequence[Sequence[str]], first: int
) -> list[Job]:
    """The jobs that Hydra asks a launcher for, once their configs are written down."""
    configure_log(config.hydra.job_logging, config.hydra.verbose)
    jobs = plan.compose(context.config_loader, config, job_overrides, first)
    return [plan.write(job, Path(config.hydra.sweep.dir)) for job in jobs]


def one_after_the_other(context: Any, task_function: Any, jobs: Sequence[Job]) -> list[JobReturn]:
    """Run the jobs in this process."""
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


def on_all_devices(context: Any, config: DictConfig, jobs: Sequence[Job]) -> list[JobReturn]:
    """Run as many jobs at once as there are devices, each in a process of its own."""
    folder = Path(config.hydra.sweep.dir)
    try:
        reasons = at_once(jobs, folder, config.launcher.jobs)
    except KeyboardInterrupt:
        sweep.tell(folder, stopped=True)
        raise
    results = []
    for job in jobs:
        reason = reasons.get(job.folder)
        said = None if reason is None else f"{job.name}: {reason}"
        result = JobReturn(cfg=job.config, status=JobStatus.COMPLETED, _return_value=said)
        context.callbacks.on_job_end(config=job.hydra, job_return=result)
        results.append(result)
    return results


def at_once(jobs: Sequence[Job], folder: Path, number: int | None) -> dict[Path, str]:
    """Run the jobs of that sweep, ``number`` at once; the reasons that are in no folder."""
    from rdm_solo.train.launchers import devices, processes

    if not jobs:
        return {}
    with cli.sentences():
        if number is not None:
            check_whole("launcher.jobs", number, 1, alternative="null to let the machine decide")
        shares = devices.shares([job.config for job in jobs], number)
    log.info(f"{len(jobs)} runs, {len(shares)} at once on this machine, in {folder}")
    return processes.run([_task(job, folder) for job in jobs], shares)


def _task(job: Job, folder: Path) -> Any:
    from rdm_solo.train.launchers.processes import Task

    variables = {sweep.VARIABLE: str(folder.absolute())}
    if job.planned is not None:
        variables[CONFIG_VARIABLE] = str(job.planned / CONFIG)
        variables[FOLDER_VARIABLE] = str(job.folder)
    if job.hydra is not None:
        typed: Any = OmegaConf.to_container(job.hydra.hydra.job.env_set)
        variables |= {name: str(value) for name, value in typed.items()}
    return Task(job.folder, job.options, variables)
