"""Whether the runs of a sweep ask a cluster for GPUs."""

import logging
from collections.abc import Sequence

from omegaconf import DictConfig

from rdm_solo.train.launchers.plan import Job

log = logging.getLogger("rdm_solo")


def are_asked_for(trainer: DictConfig) -> bool:
    """Whether the run says that it needs GPUs: a cluster gives none to a run that does not."""
    return trainer.accelerator in ("gpu", "cuda")


def warn_where_none_are_asked_for(jobs: Sequence[Job]) -> None:
    """Say so once for all runs that would take a GPU, but do not ask for one."""
    if any(job.config.trainer.accelerator == "auto" for job in jobs):
        log.warning(
            "warning: the runs ask for no GPU, since trainer.accelerator is auto: with GPUs type "
            "trainer.accelerator=gpu, without trainer.accelerator=cpu"
        )
