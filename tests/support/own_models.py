"""Small networks and loops that a user could have written."""

import copy

import torch
from torch import nn
from torch.nn.functional import cosine_similarity

DIM = 12


class SimSiam(nn.Module):
    """A model with the part names of lightly's example; a step calls it once per view."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.backbone = nn.Sequential(nn.Linear(DIM, 16), nn.ReLU())
        self.projection_head = nn.Linear(16, 8)
        hidden = nn.Linear(8, 6)
        self.prediction_head = nn.Sequential(hidden, nn.ReLU(), nn.Linear(6, 8))

    def forward(self, x):
        z = self.projection_head(self.backbone(x))
        return z, self.prediction_head(z)


class BYOL(SimSiam):
    def __init__(self):
        super().__init__()
        self.backbone_momentum = copy.deepcopy(self.backbone)
        self.projection_head_momentum = nn.Linear(16, 8)

    def target(self, x):
        with torch.no_grad():
            return self.projection_head_momentum(self.backbone_momentum(x))


def collapsed_model():
    """Return a model that gives all images the same output."""
    model = SimSiam()
    nn.init.zeros_(model.projection_head.weight)
    return model


def batches(steps=4):
    """Return pairs of views ``(2, 10, DIM)``."""
    rng = torch.Generator().manual_seed(2)
    return list(torch.randn(steps, 2, 10, DIM, generator=rng))


def siamese_step(model, batch):
    z1, p1 = model(batch[0])
    z2, p2 = model(batch[1])
    z = torch.cat([z2, z1])
    p = torch.cat([p1, p2])
    return -cosine_similarity(p, z.detach()).mean()


def watched_epoch(watch, model, step=siamese_step):
    """Run one epoch of a loop and return its scalars."""
    for batch in batches():
        watch.step(step(model, batch))
    return watch.end_epoch()
