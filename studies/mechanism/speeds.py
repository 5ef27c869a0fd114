"""How fast the projections change in the directions of large and of small eigenvalues."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rdm_solo.lightning import pl
from rdm_solo.runs.files import write_atomically

FILE = "speeds.json"
CUT = 1e-4  # smaller eigenvalues, relative to the largest, are not fitted


def slope(before: Tensor, after: Tensor) -> float:
    """Return the slope of the log relative speed on the log eigenvalue. Shapes: ``(N, k)`` each.

    The relative speed of direction i is the root of ``E[(u_i . dz)^2] / lambda_i``.

    >>> z = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    >>> round(slope(z, z * torch.tensor([1.2, 1.1])), 3)  # the larger direction is twice as fast
    0.5
    """
    before, change = before.double(), (after - before).double()
    lam, vectors = torch.linalg.eigh(before.mT @ before / len(before))
    speed = ((change @ vectors).square().mean(0) / lam.clamp_min(1e-300)).sqrt()
    kept = (lam > CUT * lam[-1]) & (speed > 0)
    x, y = lam[kept].log(), speed[kept].log()
    x = x - x.mean()
    return float((x * y).sum() / x.square().sum())


class Speeds(pl.Callback):  # type: ignore[misc]
    """Write the slope over each of these epochs, for training images without augmentation."""

    def __init__(self, folder: Path, epochs: Sequence[int], rows: int = 1024) -> None:
        self.path, self.epochs, self.rows = Path(folder) / FILE, list(epochs), rows
        self.before: Tensor = torch.empty(0)
        self.slopes: dict[int, float] = {}

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch + 1 in self.epochs:
            self.before = self._projections(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        epoch = trainer.current_epoch + 1
        if epoch in self.epochs:
            self.slopes[epoch] = slope(self.before, self._projections(trainer, pl_module))
            write_atomically(self.path, json.dumps(self.slopes, indent=2) + "\n")

    @torch.no_grad()
    def _projections(self, trainer: Any, pl_module: Any) -> Tensor:
        pl_module.eval()
        batches = (images for images, _ in trainer.datamodule.memory_dataloader())
        rows = torch.cat([pl_module.projector(pl_module.backbone(x)).cpu() for x in batches])
        pl_module.train()
        return rows[: self.rows]
