"""Batches of features, and what a filter has to make of them by an SVD in float64 on the CPU.

The oracle shares no code with the filters but for the cut: the share of the largest singular value
below which a direction counts as rounding noise (:func:`rdm_solo.filters.relative_cut`).
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rdm_solo.bench.filters import batch_normed
from rdm_solo.filters import relative_cut

# Fewer rows than columns, more, and as many: another Gram matrix is decomposed in each case.
SHAPES = [(256, 2048), (512, 256), (64, 64)]
SMALL_SHAPES = [(48, 96), (96, 48)]
KINDS = ["well conditioned", "1/i after batch norm"]
HOSTILE = ["repeated rows", "a row of zeros", "a row of NaN"]


@dataclass(frozen=True)
class Batch:
    """Features ``(n, k)``, a gradient that reaches the filter's output, and the features' SVD."""

    x: Tensor
    grad: Tensor
    u: Tensor
    sigma: Tensor
    vh: Tensor
    short: Tensor  # (n, 1): rows that are broken, or zero to rounding

    def wanted(self, function: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """The filtered rows, and the gradient of the features; float64."""
        n, k = self.x.shape
        kept = self.sigma > relative_cut(self.x.dtype, n, k) * self.sigma[0]
        gain = torch.where(kept, function(torch.where(kept, self.sigma, 1.0)), 0.0)
        values = (self.u * (self.sigma * gain)) @ self.vh
        grad = self.grad.double().masked_fill(self.short, 0.0)
        return values.masked_fill(self.short, 0.0), (grad @ self.vh.mT * gain) @ self.vh


@functools.lru_cache(maxsize=64)
def features(kind: str, n: int, k: int) -> Tensor:
    """float32 features of that kind, the same on every machine but for rounding; made once."""
    if kind == "1/i after batch norm":
        return batch_normed(n, k)
    x = torch.randn(n, k, generator=torch.Generator().manual_seed(n + k))
    if kind == "repeated rows":
        x[n // 2 :] = x[: n - n // 2]
    elif kind != "well conditioned":
        x[n // 3] = math.nan if kind == "a row of NaN" else 0.0
    return x


@functools.lru_cache(maxsize=64)
def batch(kind: str, n: int, k: int, dtype: torch.dtype = torch.float32) -> Batch:
    """A batch of that kind and its decomposition, made once."""
    x = features(kind, n, k).to(dtype)
    grad = torch.randn(n, k, generator=torch.Generator().manual_seed(1)).to(dtype)
    wide = x.double()
    broken = ~wide.isfinite().all(1, keepdim=True)
    wide = wide.masked_fill(broken, 0.0)
    lengths = wide.norm(dim=1, keepdim=True)
    short = lengths <= relative_cut(torch.float32, n, k) * lengths.square().mean().sqrt()
    u, sigma, vh = torch.linalg.svd(wide, full_matrices=False)
    return Batch(x, grad, u, sigma, vh, short)


def off(got: Tensor, want: Tensor) -> float:
    """The distance from what is wanted: of a row's direction at most, or of the whole, relative.

    >>> off(torch.tensor([[1.0, 1e-3]]), torch.tensor([[1.0, 0.0]]).double()) < 1.1e-3
    True
    """
    wide = got.detach().cpu().double()
    units = [torch.nn.functional.normalize(x, dim=1, eps=1e-300) for x in (wide, want)]
    rows = (units[0] - units[1]).norm(dim=1).amax()
    return float(torch.maximum(rows, (wide - want).norm() / want.norm()))
