"""Accuracy of the weighted k nearest neighbours, measured while a run trains."""

from __future__ import annotations

from typing import Any

import torch

from rdm_solo.callbacks.last_epoch import ends
from rdm_solo.callbacks.neighbours import Neighbours, unit
from rdm_solo.distributed import gather
from rdm_solo.lightning import pl

__all__ = ["WeightedKNN"]


class WeightedKNN(pl.Callback):  # type: ignore[misc,name-defined]
    """Accuracy of the weighted k nearest neighbours on clean images, exact, over all processes."""

    def __init__(self, every_n_epochs: int = 1, k: int = 20, temperature: float = 0.07) -> None:
        self.every_n_epochs, self.k, self.temperature = every_n_epochs, k, temperature

    @torch.no_grad()
    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.sanity_checking or not self.every_n_epochs:
            return
        if trainer.current_epoch % self.every_n_epochs and not ends(trainer):
            return
        validation = [(unit(pl_module.backbone(x)), y) for x, y in trainer.val_dataloaders]
        queries = torch.cat(gather(torch.cat([features for features, _ in validation])))
        labels = torch.cat(gather(torch.cat([y for _, y in validation])))
        found = Neighbours(queries, self.k)
        for x, y in trainer.datamodule.memory_dataloader():
            found.add(unit(pl_module.backbone(x)), y)
        found.merge_processes()
        guesses = found.scores(pl_module.num_classes, self.temperature).argmax(1)
        accuracy = 100 * (guesses == labels).float().mean()
        pl_module.log_dict({"val/knn_acc1": accuracy}, prog_bar=True, sync_dist=True)
