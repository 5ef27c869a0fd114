"""``launcher=local``: as many runs at once as this machine has devices."""

import logging
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig

from rdm_solo.train.launchers import devices, processes
from rdm_solo.train.launchers.plan import Job

log = logging.getLogger("rdm_solo")


def run(jobs: Sequence[Job], folder: Path, launcher: DictConfig) -> dict[Path, str]:
    """Run the jobs, one after the other with ``basic``; the reasons that are in no folder."""
    number = 1 if launcher.name == "basic" else launcher.jobs
    shares = devices.shares([job.config for job in jobs], number)
    log.info(f"{len(jobs)} runs, {len(shares)} at once on this machine, in {folder}")
    return processes.run(jobs, folder, shares)
