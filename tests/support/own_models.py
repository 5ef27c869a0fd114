"""Small networks and loops that a user could have written."""

import copy

import torch
from torch import nn
from torch.nn.functional import cosine_similarity

DIM = 12


class SimSiam(nn.Module):
    """A model with the part names of lightly's example; a step calls it once per view."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.backbone = nn.Sequential(nn.Linear(DIM, 16), nn.ReLU())
        self.projection_head = nn.Linear(16, 8)
        self.prediction_head = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 8))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = self.projection_head(self.backbone(x))
        return z, self.prediction_head(z)


class BYOL(SimSiam):
    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.backbone_momentum = copy.deepcopy(self.backbone)
        self.projection_head_momentum = nn.Linear(16, 8)

    def target(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.projection_head_momentum(self.backbone_momentum(x))


def batches(steps: int = 4, n: int = 10, seed: int = 2) -> list[torch.Tensor]:
    """Return pairs of views ``(2, n, DIM)``."""
    rng = torch.Generator().manual_seed(seed)
    return list(torch.randn(steps, 2, n, DIM, generator=rng))


def siamese_step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    z1, p1 = model(batch[0])
    z2, p2 = model(batch[1])
    first = cosine_similarity(p1, z2.detach())
    second = cosine_similarity(p2, z1.detach())
    return -torch.cat([first, second]).mean()


def watched_epoch(watch, model: nn.Module, step=siamese_step) -> dict[str, float]:
    """Run one epoch of a loop and return its scalars."""
    for batch in batches():
        watch.step(step(model, batch))
    return watch.end_epoch()
