"""Modules that replace SimSiam's predictor or target head in "Is a gap sufficient?".

Each arm has, in every batch, the gap that the target filter σ^-0.5 would have for the same
projections, or comes as close to it as it can. A gap is the difference of the effective ranks of
both branches' outputs, scaled to unit length.
"""

import math

import torch
from torch import Tensor, nn

from rdm_solo.filters import SpectralFilter
from rdm_solo.ground.lightning import pl
from rdm_solo.spectra import correlation, effective_rank

HALVINGS = 20  # bisection steps for the noise's scale, between 0 and 16 times the outputs' scale


def rank_of(x: Tensor) -> float:
    """Return the effective rank of rows scaled to unit length."""
    rows = nn.functional.normalize(x.detach(), dim=1)
    return float(effective_rank(correlation(rows)))


class Matched(nn.Module):
    """An arm that is matched to the target filter σ^-0.5, its reference."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.reference = SpectralFilter("target", "pow", p=-0.5)
        self.draw = torch.Generator().manual_seed(seed)


class RotatedAnew(Matched):
    """The reference filter, then a random rotation that is drawn for each view."""

    def forward(self, x: Tensor) -> Tensor:
        return self.reference(x) @ self.rotation(x)

    def rotation(self, x: Tensor) -> Tensor:
        """Draw uniformly from all rotations."""
        k = x.shape[1]
        normal = torch.randn(k, k, generator=self.draw, dtype=torch.float64)
        q, r = torch.linalg.qr(normal)
        return (q * r.diagonal().sign()).to(x)


class Rotated(RotatedAnew):
    """The reference filter, then a random rotation that is drawn once."""

    first: Tensor | None = None

    def rotation(self, x: Tensor) -> Tensor:
        if self.first is None:
            self.first = super().rotation(x)
        return self.first


class Noise(Matched):
    """The projections plus normal noise, whose scale gives them the reference's rank."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach()
        target_rank = rank_of(self.reference(x))
        scale = x.square().mean().sqrt()
        noise = torch.randn(x.shape, generator=self.draw).to(x) * scale
        low = 0.0
        high = 16.0
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            if rank_of(x + middle * noise) < target_rank:
                low = middle
            else:
                high = middle
        return x + low * noise


class Truncation(Matched):
    """An online filter that keeps the largest directions, as many as give the reference's gap."""

    def forward(self, x: Tensor) -> Tensor:
        rank = rank_of(x)
        gap = rank_of(self.reference(x)) - rank
        vectors = torch.linalg.svd(x.detach().double(), full_matrices=False).Vh.mT.to(x)
        closest = math.inf
        for r in range(1, vectors.shape[1] + 1):
            W = vectors[:, :r] @ vectors[:, :r].mT
            miss = abs(rank - rank_of(x @ W) - gap)
            if miss < closest:
                closest, filtered = miss, x @ W
        return filtered


TARGETS = {"rotated": Rotated, "rotated anew": RotatedAnew, "noise": Noise}


class Arm(pl.Callback):
    """Put an arm's module into the heads of a SimSiam with ``filter=identity``."""

    def __init__(self, arm: str, seed: int) -> None:
        self.arm = arm
        self.seed = seed

    def setup(self, trainer, pl_module, stage):
        if self.arm == "truncation":
            pl_module.predictor = Truncation(self.seed)
        else:
            pl_module.target_head = TARGETS[self.arm](self.seed)
