"""Log the accuracy of an exact weighted kNN classifier during training."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rdm_solo.callbacks import is_due
from rdm_solo.callbacks.measurement import Measurement
from rdm_solo.callbacks.untrained import is_untrained
from rdm_solo.data.loaders import MemoryLoader
from rdm_solo.observe import neighbours

ACCURACY = "val/knn_acc1"
CHANCE = "val/chance"
PIXELS = "val/knn_pixels"


@dataclass(eq=False)
class WeightedKNN(Measurement):
    """Log the accuracy of weighted k nearest neighbours on clean images, over all processes.

    Before training it also classifies the normalised pixels of images that are held in memory. A
    backbone whose accuracy is below theirs has learned nothing that kNN can use.
    """

    every_n_epochs: int = 1
    k: int = 20
    temperature: float = 0.07

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if not self.every_n_epochs or not is_untrained(trainer):
            return
        datamodule = trainer.datamodule
        loader = datamodule.val_dataloader()
        if not loader:
            return
        training = [module for module in pl_module.modules() if module.training]
        pl_module.eval()
        accuracy, chance = self.accuracy(datamodule, loader, pl_module.backbone)
        self.scalars = {ACCURACY: float(accuracy), CHANCE: float(chance)}
        for module in training:
            module.training = True

        in_memory = isinstance(datamodule.memory_dataloader(), MemoryLoader)
        if in_memory and isinstance(loader, MemoryLoader):
            accuracy, _ = self.accuracy(datamodule, loader, torch.nn.Flatten())
            self.scalars[PIXELS] = float(accuracy)

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking and is_due(trainer, self.every_n_epochs):
            loader = trainer.val_dataloaders
            accuracy, chance = self.accuracy(trainer.datamodule, loader, pl_module.backbone)
            self.log_scalars(pl_module, {ACCURACY: accuracy}, prog_bar=True)
            self.log_scalars(pl_module, {CHANCE: chance})

    def accuracy(
        self, datamodule: Any, loader: Any, encoder: Callable[[Tensor], Tensor]
    ) -> neighbours.Accuracy:
        """Return the accuracy on the loader's images, the same on all processes."""

        def encoded(images: Any) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
            for index, (x,), labels in images.indexed():
                yield encoder(x), labels, index

        memory = encoded(datamodule.memory_dataloader())
        return neighbours.accuracy(memory, encoded(loader), self.k, self.temperature)
