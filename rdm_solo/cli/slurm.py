"""What SLURM says of the job that this process belongs to."""

import hashlib
import os
from collections.abc import Sequence


def job() -> str | None:
    """The job, and the task where it is an array's; a job that is requeued keeps both."""
    array, task = (os.environ.get(f"SLURM_ARRAY_{name}_ID") for name in ("JOB", "TASK"))
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID")


def requeued() -> bool:
    """Whether SLURM has started this job before."""
    return start() not in (None, "0")


def start() -> str | None:
    """How often SLURM had started this job before, in digits; None outside a job."""
    return None if job() is None else os.environ.get("SLURM_RESTART_COUNT") or "0"


def name_of_folder(now: str, overrides: Sequence[str]) -> str:
    """How a run's default folder begins: the time, or the job, so that a requeued one finds it.

    A job may start several runs; what was typed tells them apart.

    >>> name_of_folder("2026-01-31_12-00-00", ["p=-0.5"])
    '2026-01-31_12-00-00'
    """
    number = job()
    if number is None:
        return now
    return f"job_{number}_{hashlib.sha256(' '.join(overrides).encode()).hexdigest()[:6]}"
