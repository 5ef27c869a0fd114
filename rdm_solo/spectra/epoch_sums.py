"""Pieces of the epoch metrics: rows as they enter a sum, and reduction over processes."""

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
    """Return rows in float64, scaled to length 1; rows of zeros stay zero."""
    y = rows.double()
    if rows.dtype == torch.double:  # whose squares may leave the range
        largest = torch.linalg.vector_norm(y, math.inf, dim=1, keepdim=True)
        y = y / torch.where(largest > 0, largest, 1.0)
    return torch.nn.functional.normalize(y, dim=1, eps=1e-150)


def upper_gram(x: Tensor) -> Tensor:
    """Return ``x^T x`` with zeros in the blocks below the diagonal."""
    k = x.shape[1]
    gram = x.new_zeros(k, k)
    for i in range(0, k, BLOCK):
        gram[i : i + BLOCK, i:] = x[:, i : i + BLOCK].mT @ x[:, i:]
    return gram


def whole_gram(upper: Tensor) -> Tensor:
    """Return the symmetric matrix with this upper triangle."""
    return upper.triu() + upper.triu(1).mT


def in_pairs(target: Tensor, positive: Tensor, whole: Tensor) -> Tensor:
    """Return whether a batch is two views of each sample: its halves are each other's positives.

    A pair of which neither row is whole does not count.
    """
    half = len(target) // 2
    if len(target) % 2:
        return whole.new_zeros(())
    alike = (positive.roll(half, 0) == target).all(1)
    return (alike | ~(whole | whole.roll(half))).all()


def add_or_gather(x: Tensor, group: Any = None) -> list[Tensor]:
    """Reduce a state for torchmetrics, which would gather each process's matrices to add them.

    Sampled rows and their hashes have three axes and are gathered; sums have fewer.
    """
    return gather(x) if x.ndim == 3 else [sum_over_processes(x.clone())]


def step_mean(total: Tensor, whole: Tensor) -> Tensor:
    """Return the step's mean over all processes, from the sum of this process's rows.

    It is multiplied by the root of this process's number of rows, so that its outer product is the
    mean's part of this process's sum of products.
    """
    count = whole.sum().to(total)
    counted = sum_over_processes(torch.cat([total, count[None]]))
    return counted[:-1] / counted[-1].clamp_min(1) * count.sqrt()
