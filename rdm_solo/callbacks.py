"""What watches a run: spectra of both branches, weighted kNN, the table of epochs."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from rdm_solo.host import pl
from rdm_solo.spectra import BranchSpectra

__all__ = ["COLUMNS", "Diagnostics", "EpochTable", "WeightedKNN", "knn_scores"]

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

    Outputs are seen through hooks on ``predictor`` and ``target_head``; no training step changes.
    Of a long epoch, evenly spaced steps are taken until about ``max_rows`` view rows are in.
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
        self._seen: dict[str, list[Tensor]] = {"online": [], "target": [], "projection": []}
        self._watching = False
        self._handles: list[Any] = []
        self._epochs: list[dict[str, np.ndarray]] = []

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self._handles = [
            pl_module.predictor.register_forward_hook(self._see_online),
            pl_module.target_head.register_forward_hook(self._see_target),
        ]

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        for handle in self._handles:
            handle.remove()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if self.resume is not None and (self.resume / "spectra.npz").exists():
            with np.load(self.resume / "spectra.npz") as saved:
                past = saved["epoch"] < trainer.current_epoch
                self._epochs = [
                    {name: saved[name][row] for name in saved.files} for row in np.flatnonzero(past)
                ]

    def _see_online(self, module: Any, args: tuple[Tensor], output: Tensor) -> None:
        if self._watching and module.training:
            self._seen["projection"].append(args[0].detach())
            self._seen["online"].append(output.detach())

    def _see_target(self, module: Any, args: tuple[Tensor], output: Tensor) -> None:
        if self._watching and module.training:
            self._seen["target"].append(output.detach())

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        due = self.every_n_epochs and trainer.current_epoch % self.every_n_epochs == 0
        last = trainer.current_epoch == trainer.max_epochs - 1
        rows = len(batch[2]) * pl_module.num_large_crops * trainer.world_size
        stride = max(1, math.ceil(rows * trainer.num_training_batches / self.max_rows))
        self._watching = bool(self.every_n_epochs and (due or last)) and batch_idx % stride == 0

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not self._watching:
            return
        self._watching = False
        views = pl_module.num_large_crops
        online, target, projection = (seen[:views] for seen in self._seen.values())
        for seen in self._seen.values():
            seen.clear()
        if self.metric is None:
            self.metric = BranchSpectra(online[0].shape[1]).to(online[0].device)
        self.metric.update(
            torch.cat(online),
            torch.cat(target),
            torch.cat(target[1:] + target[:1]),
            torch.cat(projection),
        )

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self.metric is None or not self.metric.update_called:
            return
        spectra = self.metric.compute()
        self.metric.reset()
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
        memory = [
            (_unit(pl_module.backbone(x)), y) for x, y in trainer.datamodule.memory_dataloader()
        ]
        features = _all_rows(torch.cat([f for f, _ in memory]))
        labels = _all_rows(torch.cat([y for _, y in memory]))
        counts = torch.zeros(2, device=features.device)
        for x, y in trainer.val_dataloaders:
            scores = knn_scores(
                _unit(pl_module.backbone(x)),
                features,
                labels,
                pl_module.num_classes,
                self.k,
                self.temperature,
            )
            counts += torch.stack([(scores.argmax(1) == y).sum(), y.new_tensor(len(y))])
        if trainer.world_size > 1:
            dist.all_reduce(counts)
        accuracy = float(100 * counts[0] / counts[1])
        pl_module.log_dict({"val/knn_acc1": accuracy}, prog_bar=True, sync_dist=True)


def knn_scores(
    queries: Tensor, memory: Tensor, labels: Tensor, classes: int, k: int, temperature: float
) -> Tensor:
    r"""Class scores :math:`\sum_{j \in kNN} e^{\cos_j / T} [y_j = c]` for unit rows.

    Shapes: ``(n, d), (N, d), (N,) -> (n, classes)``.

    >>> eye = torch.eye(2)
    >>> knn_scores(eye, eye, torch.tensor([1, 0]), classes=2, k=1, temperature=1.0).argmax(1)
    tensor([1, 0])
    """
    similarity, nearest = (queries @ memory.mT).topk(min(k, len(memory)), dim=1)
    # Relative to the nearest, so that a small temperature does not overflow.
    votes = ((similarity - similarity[:, :1]) / temperature).exp()
    return votes.new_zeros(len(queries), classes).scatter_add_(1, labels[nearest], votes)


def _unit(x: Tensor) -> Tensor:
    return torch.nn.functional.normalize(x.float(), dim=1)


def _all_rows(x: Tensor) -> Tensor:
    """The rows of all processes, which need not hold equally many."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return x
    size = torch.tensor([len(x)], device=x.device)
    sizes = [torch.zeros_like(size) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, size)
    longest = max(int(s) for s in sizes)
    padded = torch.cat([x, x.new_zeros(longest - len(x), *x.shape[1:])])
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded)
    return torch.cat([part[: int(s)] for part, s in zip(parts, sizes)])


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
