"""What watches a run: spectra of both branches, weighted kNN, the table of epochs."""

from __future__ import annotations

import csv
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rdm_solo.host import pl
from rdm_solo.knn import Neighbours, all_rows, unit
from rdm_solo.observe import Observer, observer
from rdm_solo.spectra import BranchSpectra, Spectra

__all__ = ["COLUMNS", "Diagnostics", "EpochTable", "WeightedKNN"]

log = logging.getLogger("rdm_solo")

COLUMNS = [
    "epoch",
    "erank/online",
    "erank/target",
    "erank/gap",
    "erank/projection",
    "alignment/online_target",
    "alignment/online_target_weighted",
    "alignment/target_positive",
    "filter/monotonicity",
    "filter/monotonicity_directional",
    "feature/variance",
    "train/loss",
    "val/acc1",
    "val/knn_acc1",
]


class Diagnostics(pl.Callback):  # type: ignore[misc,name-defined]
    """Accumulate both branches' spectra over an epoch's training outputs.

    Outputs are heard through hooks (:mod:`rdm_solo.observe`); no training step changes, so it goes
    with any of solo-learn's methods. Of a long epoch, evenly spaced steps are taken until about
    ``max_rows`` view rows are in.
    """

    def __init__(
        self,
        folder: Path,
        every_n_epochs: int = 1,
        max_rows: int = 10_000,
        resume: Path | None = None,
    ) -> None:
        self.folder, self.resume = folder, resume
        self.every_n_epochs, self.max_rows = every_n_epochs, max_rows
        self.metric: BranchSpectra | None = None
        self.latest: Spectra | None = None  # of the last epoch measured, on every process
        self._told = False
        self.observer: Observer | None = None
        self._epochs: list[dict[str, np.ndarray]] = []

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        if self.every_n_epochs:
            self.observer = observer(pl_module)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        if self.observer is not None:
            self.observer.detach()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if self.resume is not None and (self.resume / "spectra.npz").exists():
            with np.load(self.resume / "spectra.npz") as saved:
                past = saved["epoch"] < trainer.current_epoch
                self._epochs = [
                    {name: saved[name][row] for name in saved.files} for row in np.flatnonzero(past)
                ]

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.observer is None:
            return
        due = trainer.current_epoch % self.every_n_epochs == 0
        last = trainer.current_epoch == trainer.max_epochs - 1
        rows = len(batch[2])
        seen = rows * pl_module.num_large_crops * trainer.world_size * trainer.num_training_batches
        stride = max(1, math.ceil(seen / self.max_rows))
        if (due or last) and batch_idx % stride == 0:
            self.observer.attach()  # not before: SwAV makes its Sinkhorn when training starts
            self.observer.listen(rows)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.observer is None or not self.observer.listening:
            return
        heard = self.observer.take(pl_module.num_large_crops)
        if self.metric is None:
            dim = heard.online.shape[1]
            self.metric = BranchSpectra(dim, self.observer.normalize).to(heard.online.device)
        self.metric.update(*heard)

    @staticmethod
    def _counts(trainer: Any, metric: BranchSpectra) -> tuple[int, int]:
        """Rows that entered the spectra and rows that were left out, over all processes."""
        counts = torch.stack([metric.count, metric.broken])
        seen, broken = trainer.strategy.reduce(counts, reduce_op="sum").tolist()
        return seen, broken

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self.metric is None or not self.metric.update_called:
            return
        seen, broken = self._counts(trainer, self.metric)
        if broken and not self._told:
            self._told = True
            log.warning(
                f"warning: {broken} of {seen + broken} outputs of epoch "
                f"{trainer.current_epoch + 1} are NaN or infinite; spectra leave them out. A lower "
                "learning rate may help."
            )
        self.latest = spectra = self.metric.compute() if seen else None
        self.metric.reset()
        if spectra is None:
            return
        shown = {name: spectra.scalars.pop(name) for name in ("erank/online", "erank/target")}
        pl_module.log_dict(shown, prog_bar=True, sync_dist=True)
        pl_module.log_dict(spectra.scalars, sync_dist=True)
        if trainer.is_global_zero:
            arrays = {name: array.cpu().numpy() for name, array in spectra.arrays().items()}
            arrays |= {"epoch": np.array(trainer.current_epoch), "rows": np.array(spectra.rows)}
            self._epochs.append(arrays)
            stacked = {name: np.stack([e[name] for e in self._epochs]) for name in arrays}
            np.savez(self.folder / "spectra.npz", **stacked)


class WeightedKNN(pl.Callback):  # type: ignore[misc,name-defined]
    """Accuracy of the weighted k nearest neighbours on clean images, exact, over all processes."""

    def __init__(self, every_n_epochs: int = 1, k: int = 20, temperature: float = 0.07) -> None:
        self.every_n_epochs, self.k, self.temperature = every_n_epochs, k, temperature

    @torch.no_grad()
    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.sanity_checking or not self.every_n_epochs:
            return
        last = trainer.current_epoch == trainer.max_epochs - 1
        if trainer.current_epoch % self.every_n_epochs and not last:
            return
        validation = [(unit(pl_module.backbone(x)), y) for x, y in trainer.val_dataloaders]
        queries = all_rows(torch.cat([features for features, _ in validation]))
        labels = all_rows(torch.cat([y for _, y in validation]))
        found = Neighbours(queries, self.k)
        for x, y in trainer.datamodule.memory_dataloader():
            found.add(unit(pl_module.backbone(x)), y)
        found.merge_processes()
        guesses = found.scores(pl_module.num_classes, self.temperature).argmax(1)
        accuracy = 100 * (guesses == labels).float().mean()
        pl_module.log_dict({"val/knn_acc1": accuracy}, prog_bar=True, sync_dist=True)


class EpochTable(pl.Callback):  # type: ignore[misc,name-defined]
    """``metrics.csv``: one row an epoch, the columns above; what was not measured stays empty."""

    def __init__(self, folder: Path, resume: Path | None = None) -> None:
        self.path = folder / "metrics.csv"
        self.resume = resume
        self.rows: list[dict[str, Any]] = []

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if self.resume is not None and (self.resume / "metrics.csv").exists():
            with open(self.resume / "metrics.csv", newline="") as file:
                past = list(csv.DictReader(file))
            self.rows = [row for row in past if int(row["epoch"]) < trainer.current_epoch]

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        for name in COLUMNS:  # Lightning keeps a value until it is logged again
            trainer.callback_metrics.pop(name, None)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        metrics = trainer.callback_metrics  # reduces over processes: all of them come here
        if not trainer.is_global_zero:
            return
        row = {name: float(metrics[name]) for name in COLUMNS if name in metrics}
        self.rows.append({"epoch": trainer.current_epoch, **row})
        with open(self.path, "w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, restval="")
            writer.writeheader()
            writer.writerows(self.rows)
