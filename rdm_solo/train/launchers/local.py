"""``launcher=local``: as many runs at once as this machine has devices."""

import logging
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from rdm_solo.train.launchers.plan import Job

log = logging.getLogger("rdm_solo")


def check(trainer: DictConfig) -> None:
    """Refuse a run that names its GPUs itself."""
    if OmegaConf.is_list(trainer.devices):
        raise ValueError(
            "launcher=local hands out the GPUs itself: give trainer.devices as the number of GPUs "
            "of each run, or choose those of the sweep by CUDA_VISIBLE_DEVICES=0,1 before the "
            "command."
        )


def run(jobs: Sequence[Job], folder: Path, launcher: DictConfig) -> dict[Path, str]:
    """Run the jobs, one after the other with ``basic``; the reasons that are in no folder."""
    from rdm_solo.train.launchers import devices, processes  # torch takes seconds to load

    number = 1 if launcher.name == "basic" else launcher.jobs
    shares = devices.shares([job.config for job in jobs], number)
    log.info(f"{len(jobs)} runs, {len(shares)} at once on this machine, in {folder}")
    return processes.run(jobs, folder, shares)
