"""Symmetric alignment of two views, with or without centring (the paper's section 3)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rdm_solo.distributed import sum_over_processes, world_size

__all__ = ["Center", "symmetric_loss"]


def symmetric_loss(z1: Tensor, z2: Tensor, center: Tensor | float = 0.0) -> Tensor:
    r"""Align two views: :math:`-\mathbb{E}\,(z_1 - \mu)^\top (z_2 - \mu)` (Algorithm 1).

    For unit rows and :math:`\mu` their mean over both views, it is the loss without a centre less
    the variance plus one (Theorem 1). Shapes: ``(N, k), (N, k), (k,) -> ()``.

    >>> z1 = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> mu = z1.mean(0)
    >>> variance = (z1 - mu).square().sum(1).mean()
    >>> symmetric_loss(z1, z1, mu) == symmetric_loss(z1, z1) - variance + 1
    tensor(True)
    """
    return -((z1 - center) * (z2 - center)).sum(1).mean()


class Center(nn.Module):
    """The outputs' mean: of the batch, or an exponential moving average of it.

    The batch is that of all processes. No gradient passes: with the batch's own mean the gradient
    is the same with and without it, since :math:`\\partial\\,|\\mu|^2` is what stopping leaves.

    Args:
        dim: k, the outputs' dimension.
        kind: ``"ema"`` (Algorithm 1) or ``"batch"``.
        momentum: share of the old average that an update keeps.

    >>> center = Center(2, "ema", momentum=0.9)
    >>> center(torch.tensor([[1.0, 0.0], [1.0, 2.0]]))
    tensor([0.1000, 0.1000])
    """

    value: Tensor

    def __init__(self, dim: int, kind: str = "ema", momentum: float = 0.9) -> None:
        super().__init__()
        if kind not in ("ema", "batch"):
            raise ValueError(f"method.center must be 'ema' or 'batch', got {kind!r}.")
        if not 0 <= momentum < 1:
            raise ValueError(f"method.center_momentum must be in [0, 1), got {momentum}.")
        self.momentum = momentum if kind == "ema" else 0.0
        self.register_buffer("value", torch.zeros(dim))

    @torch.no_grad()
    def forward(self, z: Tensor) -> Tensor:
        """The centre after this batch's outputs ``z`` of shape ``(N, k)`` have been taken in."""
        mean = sum_over_processes(z.float().mean(0)) / world_size()
        self.value.lerp_(mean, 1 - self.momentum)
        return self.value.clone()
