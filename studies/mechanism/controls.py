"""Modules that replace SimSiam's predictor or target head in "Is a gap sufficient?".

Each arm has, in every batch, the gap that the target filter σ^-0.5 would have for the same
projections, or comes as close to it as it can. A gap is the difference of the effective ranks of
both branches' outputs, scaled to unit length.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rdm_solo.filters import SpectralFilter
from rdm_solo.ground.lightning import pl
from rdm_solo.spectra import correlation, effective_rank

HALVINGS = 20  # bisection steps for the noise's scale, between 0 and 16 times the outputs' scale


def rank_of(x: Tensor) -> float:
    """Return the effective rank of rows scaled to unit length."""
    return float(effective_rank(correlation(nn.functional.normalize(x.detach(), dim=1))))


class Reference(nn.Module):
    """The target filter σ^-0.5, which the other arms are matched to."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.power = SpectralFilter("target", "pow", p=-0.5)
        self.draw = torch.Generator().manual_seed(seed)

    def forward(self, x: Tensor) -> Tensor:
        filtered: Tensor = self.power(x)
        return filtered


class Rotated(Reference):
    """The reference filter, then a random rotation, drawn once or (``anew``) for each view."""

    def __init__(self, seed: int, anew: bool = False) -> None:
        super().__init__(seed)
        self.anew, self.rotation = anew, torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        if self.anew or not self.rotation.numel():
            normal = torch.randn(x.shape[1], x.shape[1], generator=self.draw, dtype=torch.float64)
            q, r = torch.linalg.qr(normal)
            self.rotation = (q * r.diagonal().sign()).to(x)  # uniform over all rotations
        return super().forward(x) @ self.rotation


class Noise(Reference):
    """The projections plus normal noise, whose scale gives them the reference's rank."""

    def forward(self, x: Tensor) -> Tensor:
        x, wanted = x.detach(), rank_of(super().forward(x))
        noise = torch.randn(x.shape, generator=self.draw).to(x) * x.square().mean().sqrt()
        low, high = 0.0, 16.0
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if rank_of(x + middle * noise) < wanted else (low, middle)
        return x + low * noise


class Truncation(Reference):
    """An online filter that keeps the largest directions, as many as give the reference's gap."""

    def forward(self, x: Tensor) -> Tensor:
        own = rank_of(x)
        wanted = rank_of(super().forward(x)) - own
        vectors = torch.linalg.svd(x.detach().double(), full_matrices=False).Vh.mT.to(x)
        kept = [vectors[:, : r + 1] @ vectors[:, : r + 1].mT for r in range(vectors.shape[1])]
        W = min(kept, key=lambda W: abs(own - rank_of(x @ W) - wanted))
        return x @ W


TARGETS: dict[str, Callable[[int], nn.Module]] = {
    "rotated": Rotated,
    "rotated anew": lambda seed: Rotated(seed, anew=True),
    "noise": Noise,
}


class Arm(pl.Callback):  # type: ignore[misc]
    """Put an arm's module into the heads of a SimSiam with ``filter=identity``."""

    def __init__(self, arm: str, seed: int) -> None:
        self.arm, self.seed = arm, seed

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if self.arm == "truncation":
            pl_module.predictor = Truncation(self.seed)
        else:
            pl_module.target_head = TARGETS[self.arm](self.seed)
