"""Metrics whose states are sums over the rows of all processes, and the sums' terms."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torchmetrics import Metric

from rdm_solo.ground.distributed import gather, sum_over_processes

# Squares of larger numbers can overflow when they are summed in float64.
LARGEST = 1e140
# Number of columns of a Gram matrix that are computed at a time.
BLOCK = 256


class SumMetric(Metric):
    """A metric whose states are sums and counts, which are added over all processes."""

    full_state_update = False

    if TYPE_CHECKING:  # states are tensors

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self) -> None:
        super().__init__(compute_with_cache=False, dist_sync_fn=add_or_gather)

    def add_sum(self, name: str, *shape: int, dtype: torch.dtype = torch.float64) -> None:
        """Add a state of zeros."""
        self.add_state(name, torch.zeros(shape, dtype=dtype), dist_reduce_fx="sum")

    def add_count(self, name: str) -> None:
        """Add an integer state."""
        self.add_sum(name, dtype=torch.long)


def add_or_gather(x: Tensor, group: Any = None) -> list[Tensor]:
    """Reduce a state for torchmetrics, which would gather all matrices before summing them.

    Sampled rows (three axes) and their hashes (integers with one axis) are gathered.
    """
    is_hashes = x.ndim == 1 and x.dtype == torch.long
    if x.ndim == 3 or is_hashes:
        return gather(x)
    return [sum_over_processes(x.clone())]


def valid_rows(outputs: Sequence[Tensor], limit: float = LARGEST) -> Tensor:
    """Return which rows have only numbers below the limit in all outputs; NaN is not below it."""
    is_below = []
    for x in outputs:
        largest = torch.linalg.vector_norm(x, math.inf, dim=1)
        is_below.append(largest < limit)
    return torch.stack(is_below).all(0)


def upper_gram(x: Tensor) -> Tensor:
    """Return ``x^T x`` with zeros in the blocks below the diagonal."""
    k = x.shape[1]
    gram = x.new_zeros(k, k)
    for start in range(0, k, BLOCK):
        block = slice(start, start + BLOCK)
        gram[block, start:] = x[:, block].mT @ x[:, start:]
    return gram


def full_gram(upper: Tensor) -> Tensor:
    """Return the symmetric matrix with this upper triangle."""
    return upper.triu() + upper.triu(1).mT


def step_mean(total: Tensor, valid: Tensor) -> Tensor:
    """Return the step's mean over all processes, from the sum of this process's rows.

    The mean m is scaled by the square root of this process's number of rows n_r, so that outer
    products can be summed over processes: sum_r (sqrt(n_r) m)(sqrt(n_r) m)^T = N m m^T.
    """
    count = valid.sum().to(total)
    total_and_count = sum_over_processes(torch.cat([total, count[None]]))
    mean = total_and_count[:-1] / total_and_count[-1].clamp_min(1)
    return mean * count.sqrt()
