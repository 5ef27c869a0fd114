"""metrics.csv: one row an epoch."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from rdm_solo.lightning import pl
from rdm_solo.runs.columns import COLUMNS, LOGITS
from rdm_solo.runs.files import METRICS, write_whole

__all__ = ["EpochTable"]


class EpochTable(pl.Callback):  # type: ignore[misc,name-defined]
    """``metrics.csv``: one row an epoch, the columns above; what was not measured stays empty."""

    def __init__(self, folder: Path, resume: Path | None = None) -> None:
        self.path = folder / METRICS
        self.resume = resume
        self.rows: list[dict[str, Any]] = []

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        past = (self.resume or self.path.parent) / METRICS
        if trainer.current_epoch and past.exists():
            with open(past, newline="") as file:
                rows = list(csv.DictReader(file))
            self.rows = [row for row in rows if int(row["epoch"]) < trainer.current_epoch]

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        for name in [*COLUMNS, LOGITS]:  # Lightning keeps a value until it is logged again
            trainer.callback_metrics.pop(name, None)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        metrics = trainer.callback_metrics  # reduces over processes: all of them come here
        if not trainer.is_global_zero:
            return
        row = {name: float(metrics[name]) for name in [*COLUMNS, LOGITS] if name in metrics}
        self.rows.append({"epoch": trainer.current_epoch, **row})
        columns = [*COLUMNS, LOGITS] if any(LOGITS in row for row in self.rows) else COLUMNS
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, restval="")
        writer.writeheader()
        writer.writerows(self.rows)
        write_whole(self.path, text.getvalue())
