"""Log the accuracy of an exact weighted kNN classifier during training."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rdm_solo.callbacks import is_due
from rdm_solo.callbacks.measurement import Measurement
from rdm_solo.callbacks.untrained import is_untrained
from rdm_solo.data.loaders import MemoryLoader
from rdm_solo.ground.distributed import gather

ACCURACY = "val/knn_acc1"
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
        classes = pl_module.num_classes
        training = [module for module in pl_module.modules() if module.training]
        pl_module.eval()
        accuracy = self.accuracy(datamodule, loader, pl_module.backbone, classes)
        self.scalars = {ACCURACY: float(accuracy)}
        for module in training:
            module.training = True

        in_memory = isinstance(datamodule.memory_dataloader(), MemoryLoader)
        if in_memory and isinstance(loader, MemoryLoader):
            accuracy = self.accuracy(datamodule, loader, torch.nn.Flatten(), classes)
            self.scalars[PIXELS] = float(accuracy)

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking and is_due(trainer, self.every_n_epochs):
            loader = trainer.val_dataloaders
            accuracy = self.accuracy(
                trainer.datamodule, loader, pl_module.backbone, pl_module.num_classes
            )
            self.log_scalars(pl_module, {ACCURACY: accuracy}, prog_bar=True)

    @torch.no_grad()
    def accuracy(
        self, datamodule: Any, loader: Any, encoder: Callable[[Tensor], Tensor], classes: int
    ) -> Tensor:
        """Return the accuracy on the loader's images in per cent, the same on all processes."""
        query_batches = []
        label_batches = []
        for x, y in loader:
            query_batches.append(unit(encoder(x)))
            label_batches.append(y)
        queries = torch.cat(gather(torch.cat(query_batches)))
        labels = torch.cat(gather(torch.cat(label_batches)))

        neighbours = Neighbours(queries, self.k)
        for x, y in datamodule.memory_dataloader():
            neighbours.add(unit(encoder(x)), y)
        neighbours.merge_processes()
        scores = neighbours.scores(classes, self.temperature)
        is_correct = scores.argmax(1) == labels
        return 100 * is_correct.float().mean()


class Neighbours:
    r"""The k most similar of all rows added so far, for each of ``n`` unit queries.

    Adding ``m`` rows computes ``n * m`` similarities and keeps ``n * k``, so the memory bank can
    have any size. The result does not depend on how the rows are split.

    >>> neighbours = Neighbours(torch.eye(2), k=1)
    >>> for row, label in zip(torch.eye(2), [1, 0]):
    ...     neighbours.add(row[None], torch.tensor([label]))
    >>> neighbours.scores(classes=2, temperature=0.1).argmax(1)
    tensor([1, 0])
    """

    def __init__(self, queries: Tensor, k: int) -> None:
        self.queries = queries
        self.k = k
        self.similarity = queries.new_empty(len(queries), 0)
        self.labels = self.similarity.long()

    def add(self, rows: Tensor, labels: Tensor) -> None:
        """Add unit rows ``(m, d)`` and their labels ``(m,)``."""
        similarity = self.queries @ rows.mT
        k = min(self.k, len(rows))
        nearest, index = similarity.topk(k, dim=1)
        similarity = torch.cat([self.similarity, nearest], dim=1)
        labels = torch.cat([self.labels, labels[index]], dim=1)
        self._keep(similarity, labels)

    def merge_processes(self) -> None:
        """Keep the k most similar of all processes' neighbours of the same queries."""
        # Processes may differ in the number of neighbours, which `gather` allows in the first axis.
        similarity = torch.cat(gather(self.similarity.mT.contiguous()))
        labels = torch.cat(gather(self.labels.mT.contiguous()))
        self._keep(similarity.mT, labels.mT)

    def scores(self, classes: int, temperature: float) -> Tensor:
        r"""Return class scores :math:`\sum_{j \in kNN} e^{\cos_j / T} [y_j = c]`, ``(n, classes)``.

        The nearest neighbour's similarity is subtracted, so low temperatures do not overflow.
        """
        nearest = self.similarity[:, :1]
        votes = ((self.similarity - nearest) / temperature).exp()
        scores = votes.new_zeros(len(votes), classes)
        return scores.scatter_add_(1, self.labels, votes)

    def _keep(self, similarity: Tensor, labels: Tensor) -> None:
        """Replace the neighbours by the k most similar of these."""
        k = min(self.k, similarity.shape[1])
        self.similarity, index = similarity.topk(k, dim=1)
        self.labels = labels.gather(1, index)


def unit(x: Tensor) -> Tensor:
    """Return rows of unit length in float32."""
    return torch.nn.functional.normalize(x.float(), dim=1)
