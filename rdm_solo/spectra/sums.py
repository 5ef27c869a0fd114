"""Metrics whose states are sums over the rows of all processes, and the sums' terms."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_sum

from rdm_solo.ground.distributed import sum_over_processes

# Squares of larger numbers could overflow when they are summed in float64.
LARGEST = 1e140
# Number of columns of a Gram matrix that a CPU computes at a time.
BLOCK = 256


class SumMetric(Metric):
    """A metric whose states are sums and counts, which are added over all processes."""

    full_state_update = False

    if TYPE_CHECKING:  # states are tensors

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self) -> None:
        super().__init__(compute_with_cache=False)

    def add_sum(self, name: str, *shape: int) -> None:
        """Add a float64 state of zeros."""
        zeros = torch.zeros(shape, dtype=torch.float64)
        self.add_state(name, zeros, dist_reduce_fx="sum")

    def add_count(self, name: str) -> None:
        """Add an integer state."""
        self.add_state(name, torch.tensor(0), dist_reduce_fx="sum")

    def _sync_dist(self, *args: Any, **options: Any) -> None:
        """Add each sum over all processes, in place; torchmetrics restores its own copy afterwards.

        torchmetrics (1.8) itself would gather the matrices of all processes and then add them.
        """
        for name, reduction in self._reductions.items():
            if reduction is dim_zero_sum:
                sum_over_processes(getattr(self, name))


def valid_rows(outputs: Sequence[Tensor]) -> Tensor:
    """Return which rows have only numbers below ``LARGEST`` in all outputs; NaN is not below it."""
    largest = [torch.linalg.vector_norm(x, math.inf, dim=1) for x in outputs]
    is_below = torch.stack(largest) < LARGEST
    return is_below.all(0)


def upper_gram(x: Tensor) -> Tensor:
    """Return ``x^T x``; the blocks below the diagonal may be zero, since they repeat those above.

    Leaving them out nearly halves the time of a CPU. A GPU takes longer to start eight products
    than to compute all of one.
    """
    if x.device.type != "cpu":
        return x.mT @ x
    k = x.shape[1]
    gram = x.new_zeros(k, k)
    for start in range(0, k, BLOCK):
        block = slice(start, start + BLOCK)
        columns = x[:, block]
        gram[block, start:] = columns.mT @ x[:, start:]
    return gram


def full_gram(upper: Tensor) -> Tensor:
    """Return the symmetric matrix with this upper triangle."""
    return upper.triu() + upper.triu(1).mT


def step_mean(total: Tensor, count: Tensor) -> Tensor:
    """Return the step's mean over all processes, from the sum of this process's rows.

    The mean m is scaled by the square root of this process's number of rows n_r, so that outer
    products can be summed over processes: sum_r (sqrt(n_r) m)(sqrt(n_r) m)^T = N m m^T.
    """
    count = count.to(total)
    # One call adds both over the processes.
    sums = torch.cat([total, count[None]])
    sum_over_processes(sums)
    mean = sums[:-1] / sums[-1].clamp_min(1)
    return mean * count.sqrt()
