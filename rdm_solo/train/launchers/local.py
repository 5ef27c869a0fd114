"""``launcher=local``: as many runs at once as this machine has devices."""

import logging
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from rdm_solo.messages import UserError
from rdm_solo.train.launchers.plan import Job

log = logging.getLogger("rdm_solo")


def check(launcher: DictConfig, trainer: DictConfig) -> None:
    """Refuse a run that names its GPUs itself."""
    if OmegaConf.is_list(trainer.devices):
        raise UserError(
            "launcher=local assigns GPUs itself: give trainer.devices as a number; to limit the "
            "sweep to some GPUs, put CUDA_VISIBLE_DEVICES=0,1 before the command."
        )


def run(jobs: Sequence[Job], folder: Path, launcher: DictConfig) -> dict[Path, str]:
    """Run the jobs, one after the other with ``basic``.

    Returns, by folder, the reason of each failed run that left none in its folder.
    """
    from rdm_solo.train.launchers import devices, processes  # torch takes seconds to load

    shares = [devices.Share()]
    if launcher.name == "local":
        shares = devices.shares([job.config for job in jobs], launcher.jobs)
    log.info(f"{len(jobs)} runs, {len(shares)} at once on this machine, in {folder}")
    return processes.run(jobs, folder, shares)
