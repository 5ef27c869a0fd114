"""Log how fast the projections change in the directions of large and of small eigenvalues."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rdm_solo.ground.lightning import pl

CUT = 1e-4  # smaller eigenvalues, relative to the largest, are not fitted


class Speeds(pl.Callback):
    """Log ``rate/slope``, the :func:`slope` of the change in each of these epochs (2 or later).

    The projections are those of the first ``rows`` training images, without augmentation. They are
    computed after validation, so a run without validation images has no slope. With several
    processes, each measures its share of the images.
    """

    def __init__(self, epochs: Sequence[int], rows: int = 1024) -> None:
        self.epochs = set(epochs)
        self.rows = rows
        self.latest: dict[int, Tensor] = {}  # by the epoch after which they were computed

    def on_validation_epoch_end(self, trainer, pl_module):
        epoch = trainer.current_epoch + 1
        if trainer.sanity_checking or not self.epochs & {epoch, epoch + 1}:
            return
        before = self.latest.get(epoch - 1)
        after = self.projections(trainer, pl_module)
        self.latest = {epoch: after}
        if epoch in self.epochs and before is not None:
            pl_module.log("rate/slope", slope(before, after), sync_dist=True)

    @torch.no_grad()
    def projections(self, trainer: pl.Trainer, model: nn.Module) -> Tensor:
        outputs = []
        count = 0
        for x, _ in trainer.datamodule.memory_dataloader():
            outputs.append(model.projector(model.backbone(x)))
            count += len(x)
            if count >= self.rows:
                break
        return torch.cat(outputs)[: self.rows].cpu()


def slope(before: Tensor, after: Tensor) -> float:
    """Return the slope of the log relative speed on the log eigenvalue. Shapes: ``(N, k)`` each.

    The relative speed of direction i is the root of ``E[(u_i . dz)^2] / lambda_i``, for the change
    dz, and the eigenvectors u_i and eigenvalues lambda_i of the second moment before the change.

    >>> z = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    >>> round(slope(z, z * torch.tensor([1.2, 1.1])), 3)  # the larger direction is twice as fast
    0.5
    """
    change = (after - before).double()
    before = before.double()
    lam, vectors = torch.linalg.eigh(before.mT @ before / len(before))
    along = change @ vectors
    speed = (along.square().mean(0) / lam.clamp_min(1e-300)).sqrt()
    kept = (lam > CUT * lam[-1]) & (speed > 0)
    y = speed[kept].log()
    x = lam[kept].log()
    x = x - x.mean()
    return float((x * y).sum() / x.square().sum())
