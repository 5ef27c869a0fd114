"""A callback that probes the backbone of a run at given epochs."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from rdm_solo.evaluate.extraction import extract
from rdm_solo.evaluate.probe import fit_linear
from rdm_solo.ground.lightning import pl
from rdm_solo.runs.files import write_atomically
from studies.neighbours import knn_accuracy

FILE = "probe.json"


class Probe(pl.Callback):
    """Measure the backbone's kNN and linear accuracy after these epochs; 0: before training."""

    def __init__(self, folder: Path, epochs: Sequence[int]) -> None:
        self.path = Path(folder) / FILE
        self.epochs = epochs
        self.probes: dict[int, dict[str, float]] = {}

    def on_train_start(self, trainer, pl_module):
        self.probe(0, trainer, pl_module)

    def on_train_epoch_end(self, trainer, pl_module):
        self.probe(trainer.current_epoch + 1, trainer, pl_module)

    def probe(self, epoch: int, trainer: pl.Trainer, model: nn.Module) -> None:
        if epoch not in self.epochs:
            return
        train = trainer.datamodule.memory_dataloader()
        val = trainer.datamodule.val_dataloader()
        model.eval()
        self.probes[epoch] = accuracies(model.backbone, train, val)
        model.train()
        write_atomically(self.path, json.dumps(self.probes, indent=2) + "\n")


def accuracies(backbone: Callable[[Tensor], Tensor], train: Any, val: Any) -> dict[str, float]:
    """Return the accuracies of kNN and of a linear probe on frozen features of plain images."""
    x, y = extract(backbone, train)
    x_val, y_val = extract(backbone, val)
    linear = fit_linear(x, y, x_val, y_val, num_classes=int(y.max()) + 1)
    knn = knn_accuracy(x, y, x_val, y_val)
    return {"knn": knn, "linear": linear.curve[-1].top1}
