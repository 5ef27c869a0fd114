"""What an epoch's metrics share: rows as they enter a sum, and how sums reach all processes."""

import math
from typing import Any

import torch
from torch import Tensor

from rdm_solo.distributed import gather, sum_over_processes

# The square of a larger number has no room for a sum in float64.
LARGEST = 1e140
# Columns of a Gram matrix that are multiplied at a time.
BLOCK = 256


def unit_rows(rows: Tensor) -> Tensor:
    """Rows in float64, of length 1; those of nothing but zeros stay.

    >>> unit_rows(torch.tensor([[0.0, 3.0], [0.0, 0.0]]))
    tensor([[0., 1.],
            [0., 0.]], dtype=torch.float64)
    """
    y = rows.double()
    if rows.dtype == torch.double:  # whose squares may leave the range
        largest = torch.linalg.vector_norm(y, math.inf, dim=1, keepdim=True)
        y = y / torch.where(largest > 0, largest, 1.0)
    return torch.nn.functional.normalize(y, dim=1, eps=1e-150)


def upper_gram(x: Tensor) -> Tensor:
    """The upper triangle of ``x^T x``, and little more: blocks below it are left zero.

    Shapes: ``(N, k) -> (k, k)``.

    >>> upper_gram(torch.tensor([[1.0, 2.0]])).triu()
    tensor([[1., 2.],
            [0., 4.]])
    """
    k = x.shape[1]
    gram = x.new_zeros(k, k)
    for i in range(0, k, BLOCK):
        gram[i : i + BLOCK, i:] = x[:, i : i + BLOCK].mT @ x[:, i:]
    return gram


def whole_gram(upper: Tensor) -> Tensor:
    """The symmetric matrix of which this has the upper triangle.

    >>> whole_gram(torch.tensor([[1.0, 2.0], [0.0, 4.0]]))
    tensor([[1., 2.],
            [2., 4.]])
    """
    return upper.triu() + upper.triu(1).mT


def in_pairs(target: Tensor, positive: Tensor, whole: Tensor) -> Tensor:
    """Whether a batch is two views of each sample: each half of the rows has the other one for
    positives. A row does not count where neither it nor its positive is whole.

    >>> x = torch.tensor([[1.0], [2.0]])
    >>> in_pairs(x, x.flip(0), torch.tensor([True, True])), in_pairs(x, x, x[:, 0] > 0)
    (tensor(True), tensor(False))
    """
    half = len(target) // 2
    if len(target) % 2:
        return whole.new_zeros(())
    alike = (positive.roll(half, 0) == target).all(1)
    return (alike | ~(whole | whole.roll(half))).all()


def added_or_gathered(x: Tensor, group: Any = None) -> list[Tensor]:
    """For torchmetrics, which else gathers each process's matrices before it adds them.

    Kept rows and their hashes have three axes, sums have fewer.
    """
    return gather(x, group) if x.ndim == 3 else [sum_over_processes(x.clone(), group)]


def step_mean(total: Tensor, whole: Tensor, group: Any = None) -> Tensor:
    """The step's mean over all the group's processes, from this one's sum; times the root of this
    one's count of rows: its outer product is the mean's part of this process's sum of products."""
    count = whole.sum().to(total)
    counted = sum_over_processes(torch.cat([total, count[None]]), group)
    return counted[:-1] / counted[-1].clamp_min(1) * count.sqrt()
