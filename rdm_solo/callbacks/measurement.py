"""How callbacks pass the values of an epoch to each other and to ``metrics.csv``."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rdm_solo.callbacks.untrained import is_untrained
from rdm_solo.ground.lightning import pl
from rdm_solo.observe.recorder import EpochRow
from rdm_solo.runs.columns import COLUMNS

if TYPE_CHECKING:
    from rdm_solo.spectra import Spectra


class Measurement(pl.Callback):
    """A callback that measures; later callbacks read its ``scalars`` of the current epoch."""

    scalars: dict[str, float]  # by column of metrics.csv
    latest: "Spectra | None"  # the current epoch's spectra, on every process

    def on_fit_start(self, *args: Any) -> None:
        self.scalars = {}
        self.latest = None

    on_train_epoch_start = on_fit_start

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


class EpochTable(pl.Callback):
    """Write one row per epoch to ``metrics.csv``; values that were not measured stay empty."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: list[dict[str, Any]] = []

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        from rdm_solo.runs import metrics_file  # loads code that reads run folders

        if trainer.is_global_zero:
            self.rows = metrics_file.truncate(self.folder, trainer.current_epoch)
        if not is_untrained(trainer):
            return
        self._add_row(trainer, 0)
        if trainer.is_global_zero and len(self.rows[0]) > 1:
            untrained = self.rows[0] | {"epoch": -1}  # RunLogger.log_metrics adds 1 to epoch
            for logger in trainer.loggers:
                logger.log_metrics(untrained, step=0)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        for name in COLUMNS:  # callback_metrics keeps values of earlier epochs
            trainer.callback_metrics.pop(name, None)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._add_row(trainer, trainer.current_epoch + 1)

    def _add_row(self, trainer: Any, epoch: int) -> None:
        from rdm_solo.runs import metrics_file

        scalars = epoch_row(trainer, epoch).scalars
        if trainer.is_global_zero:
            row: dict[str, float] = {"epoch": epoch}
            for name, value in scalars.items():
                if name in COLUMNS:
                    row[name] = value
            self.rows.append(row)
            metrics_file.write(self.folder, self.rows)
