"""A callback that holds a job's first start up until SLURM ends it."""

from __future__ import annotations

import time
from typing import Any

from rdm_solo.cli import slurm
from rdm_solo.lightning import pl


class SlowStart(pl.Callback):
    """Waits in that epoch, if SLURM has not started the job before."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch + 1 == self.epoch and not slurm.requeued():
            time.sleep(600)
