"""How callbacks pass the values of an epoch to each other."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from rdm_solo.ground.lightning import pl
from rdm_solo.observe.recorder import EpochRow

if TYPE_CHECKING:
    from rdm_solo.spectra import Spectra


class Measurement(pl.Callback):
    """A callback that measures; later callbacks read its ``scalars`` of the current epoch."""

    def __init__(self) -> None:
        self.scalars: dict[str, float] = {}  # by column of metrics.csv
        self.latest: Spectra | None = None  # the current epoch's spectra, on every process

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.scalars = {}
        self.latest = None

    def log_scalars(
        self, pl_module: Any, scalars: Mapping[str, Any], prog_bar: bool = False
    ) -> None:
        """Log scalars to the Trainer's loggers, and keep them for later callbacks."""
        # Lightning logs float32, and metrics.csv has the same numbers as the loggers.
        for name, value in scalars.items():
            logged = torch.as_tensor(value, dtype=torch.float32)
            pl_module.log(name, logged, prog_bar=prog_bar, sync_dist=True)
            self.scalars[name] = float(logged)


def epoch_row(trainer: Any, epoch: int) -> EpochRow:
    """Return what callbacks have measured and what the module has logged in this epoch.

    ``epoch`` is counted from 1; 0 is the untrained network. Call it on all processes, because
    Lightning reduces logged values such as the loss over processes when they are read.
    """
    logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
    row = EpochRow(epoch, logged)
    for callback in trainer.callbacks:
        if isinstance(callback, Measurement):
            row.scalars |= callback.scalars
            row.spectra = row.spectra or callback.latest
    return row
