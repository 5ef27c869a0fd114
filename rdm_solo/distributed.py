"""Rank, number of processes, and what collects rows and sums from all of them.

Each function also works without ``torch.distributed``: one process is then all there are.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["gather", "gather_equal", "rank", "sum_over_processes", "world_size"]


def world_size() -> int:
    """The number of processes.

    >>> world_size()
    1
    """
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """This process's number, from 0.

    >>> rank()
    0
    """
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def sum_over_processes(x: Tensor) -> Tensor:
    """The sum of the processes' tensors of one shape, written into ``x``.

    >>> sum_over_processes(torch.tensor([1, 2]))
    tensor([1, 2])
    """
    if world_size() > 1:
        dist.all_reduce(x)
    return x


def gather_equal(x: Tensor) -> Tensor:
    """The rows of all processes in rank order, equally many from each.

    Shapes: ``(N, ...) -> (world_size * N, ...)``.

    >>> gather_equal(torch.tensor([1, 2]))
    tensor([1, 2])
    """
    if world_size() == 1:
        return x
    parts = [
        torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(world_size())
    ]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts)


def gather(x: Tensor) -> list[Tensor]:
    """Each process's rows in rank order; a process may hold more rows than another, or none.

    Shapes: ``(N_r, ...)`` on rank r ``-> [(N_0, ...), (N_1, ...), ...]``.

    >>> gather(torch.tensor([1, 2]))
    [tensor([1, 2])]
    """
    if world_size() == 1:
        return [x]
    counts = gather_equal(torch.tensor([len(x)], device=x.device)).tolist()
    longest = max(counts)
    padded = torch.cat([x, x.new_zeros(longest - len(x), *x.shape[1:])])
    parts = torch.split_with_sizes(gather_equal(padded), [longest] * len(counts))
    return [part[:count] for part, count in zip(parts, counts)]
