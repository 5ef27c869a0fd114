"""What SLURM sets for a job's only process, and for the same job when it is started again."""

from __future__ import annotations

import pytest


def set_job(patch: pytest.MonkeyPatch, number: int = 7, restarts: int = 0) -> None:
    of_a_task = {"NTASKS": 1, "PROCID": 0, "LOCALID": 0, "NODEID": 0, "JOB_NAME": "pretrain"}
    for name, value in {**of_a_task, "JOB_ID": number, "RESTART_COUNT": restarts}.items():
        patch.setenv(f"SLURM_{name}", str(value))
