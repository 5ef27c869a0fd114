"""Write ``metrics.csv``, one row an epoch."""

from pathlib import Path
from typing import Any

from rdm_solo.lightning import pl
from rdm_solo.runs import metrics_file
from rdm_solo.runs.columns import COLUMNS


class EpochTable(pl.Callback):
    """Write one row an epoch to ``metrics.csv``; what was not measured stays empty."""

    after = ("Diagnostics", "WeightedKNN")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: list[dict[str, Any]] = []

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.is_global_zero:
            self.rows = metrics_file.begin(self.folder, trainer.current_epoch)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        for name in COLUMNS:  # Lightning keeps a value until it is logged again
            trainer.callback_metrics.pop(name, None)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        metrics = trainer.callback_metrics  # reduces over processes, so all of them read it
        if trainer.is_global_zero:
            row = {name: float(metrics[name]) for name in COLUMNS if name in metrics}
            self.rows.append({"epoch": trainer.current_epoch + 1, **row})
            metrics_file.write(self.folder, self.rows)
