"""The spectrum of a global batch, and what a filter's gains make of this process's rows."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from rdm_solo.distributed import gather_equal, rank, sum_over_processes, world_size

__all__ = ["relative_cut"]


def relative_cut(dtype: torch.dtype, n: int, k: int) -> float:
    """The share of the largest singular value below which a direction is rounding noise.

    ``eps * sqrt(max(n, k))`` for float32 and float64: above the null direction that a batch norm
    leaves (1 to 12 eps), below the signal of steep spectra. float16 and bfloat16 features are
    rounded themselves, which lifts the null direction to at most 0.29 eps (of the half type), so
    the cut lies at ``eps / 2``. float64 rows that several processes do not gather (more rows than
    columns) are cut as float32 is.

    >>> f"{relative_cut(torch.float32, 256, 2048):.1e}"
    '5.4e-06'
    """
    eps = torch.finfo(dtype).eps
    if dtype in (torch.float16, torch.bfloat16):
        return eps / 2
    return eps * math.sqrt(max(n, k))


class _Decomposition:
    """The spectrum of a global batch and what a filter makes of this process's rows.

    With more directions than rows it works on the n x n Gram matrix, otherwise on the
    k x k one; float64 either way, because a Gram matrix squares the condition number. float64
    input keeps its digits through an SVD. The host reads a few numbers off the device, around a
    decomposition that waits for the device itself.
    """

    sigma: Tensor  # the singular values above the cut, ascending
    vectors: Tensor  # their vectors of the smaller side, as columns
    gain: Tensor  # g(sigma)
    negligible: Tensor | None = None

    def __init__(self, x: Tensor) -> None:
        self.dtype = x.dtype
        world = world_size()
        self.n, self.k = len(x) * world, x.shape[1]
        self.dual = self.n < self.k
        # 2-byte features cross the wire as they are: everything is widened on arrival.
        rows, start = (gather_equal(x), rank() * len(x)) if self.dual else (x, 0)
        self.local_rows = slice(start, start + len(x))
        self.all_rows = rows.double()
        self.broken_rows = 0
        gram = self._gram()
        if not math.isfinite(float(gram.diagonal().sum())):
            gram = self._without_broken_rows()
        self.local = self.all_rows[self.local_rows] if self.dual else self.all_rows

        digits = self.dtype
        if self.dtype == torch.float64 and (self.dual or world == 1):
            u, sigma, vh = torch.linalg.svd(self.all_rows, full_matrices=False)
            self.vectors, self.sigma = (u if self.dual else vh.mT).flip(1), sigma.flip(0)
        else:
            lam, self.vectors = torch.linalg.eigh(gram)
            self.sigma = lam.clamp_min_(0).sqrt_()
            if digits == torch.float64:  # a Gram matrix has lost what float64's own cut would keep
                digits = torch.float32
        self.cut = float(self.sigma[-1]) * relative_cut(digits, self.n, self.k)
        dropped = int(torch.searchsorted(self.sigma, self.cut, right=True))
        self.sigma, self.vectors = self.sigma[dropped:], self.vectors[:, dropped:]
        if self.dual:
            self.squares = gram.diagonal()[self.local_rows]
        else:
            self.squares = self.local.square().sum(dim=1)

    def _gram(self) -> Tensor:
        if self.dual:
            return self.all_rows @ self.all_rows.mT
        return sum_over_processes(self.all_rows.mT @ self.all_rows)

    def _without_broken_rows(self) -> Tensor:
        """Rows with NaN or infinity are set to zero; all processes come here together."""
        finite = self.all_rows.isfinite().all(dim=1, keepdim=True)
        self.all_rows = torch.where(finite, self.all_rows, 0.0)
        broken = (~finite).sum()
        self.broken_rows = int(broken if self.dual else sum_over_processes(broken))
        return self._gram()

    def weigh(self, function: Callable[[Tensor], Tensor]) -> float:
        """Set the gains and return the largest singular value that they leave."""
        if not len(self.sigma):
            self.gain, self.negligible = self.sigma, torch.ones_like(self.squares).bool()[:, None]
            return 0.0
        self.gain = function(self.sigma).to(self.sigma)
        # A row of negligible norm has no direction: normalising it would invent one.
        if float(self.squares.min()) <= self.cut**2:
            self.negligible = (self.squares <= self.cut**2).unsqueeze(1)
        return float((self.gain * self.sigma).abs().max())

    def operator(self) -> Tensor:
        """The constant matrix of the smaller side: ``U g U^T`` (n x n) or ``W`` (k x k)."""
        return (self.vectors * self.gain) @ self.vectors.mT

    def filtered(self) -> Tensor:
        """``U diag(sigma g) V^T`` for this process's rows."""
        if self.dual:
            return self.finish(self.operator()[self.local_rows] @ self.all_rows)
        return self.finish(self.local @ self.operator())

    def right_vectors(self) -> Tensor:
        """``V^T`` (r x k) with unit rows, for more directions than rows."""
        return (self.vectors / self.sigma).mT @ self.all_rows

    def left_part(self) -> Tensor:
        """``U diag(sigma g)`` for this process's rows."""
        return (self.vectors * (self.sigma * self.gain))[self.local_rows]

    def finish(self, result: Tensor) -> Tensor:
        if self.negligible is not None:
            result = result.masked_fill(self.negligible, 0.0)
        return result.to(self.dtype)


def _in_range(gain: Tensor, peak: float, dtype: torch.dtype) -> Tensor:
    """The gain, rescaled by one constant where the result would be too small or large to use."""
    low, high = (1e-3, 1e3) if dtype == torch.float16 else (1e-4, 1e15)
    return gain if peak == 0 or low <= peak <= high else gain / peak
