"""Rank, number of processes, and what collects rows and sums from all of them.

Each function also works without ``torch.distributed``: one process is then all there are.
"""

from typing import Any, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")


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


def sum_over_processes(x: torch.Tensor, group: Any = None) -> torch.Tensor:
    """The sum of the processes' tensors of one shape, written into ``x``; of a group's processes
    where one is given.

    >>> sum_over_processes(torch.tensor([1, 2]))
    tensor([1, 2])
    """
    if world_size() > 1:
        dist.all_reduce(x, group=group)
    return x


def largest_over_processes(x: torch.Tensor) -> torch.Tensor:
    """The largest of the processes' tensors of one shape, written into ``x``.

    >>> largest_over_processes(torch.tensor([1, 2]))
    tensor([1, 2])
    """
    if world_size() > 1:
        dist.all_reduce(x, dist.ReduceOp.MAX)
    return x


def gather_equal(x: torch.Tensor) -> torch.Tensor:
    """The rows of all processes in rank order, equally many from each.

    Shapes: ``(N, ...) -> (world_size * N, ...)``.

    >>> gather_equal(torch.tensor([1, 2]))
    tensor([1, 2])
    """
    if world_size() == 1:
        return x
    rows = x.new_empty(world_size() * len(x), *x.shape[1:])
    dist.all_gather_into_tensor(rows, x.contiguous())
    return rows


def gather_objects(value: T) -> list[T]:
    """Each process's value in rank order; any that can be pickled.

    >>> gather_objects({"a": 1})
    [{'a': 1}]
    """
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value)
    return values


def gather(x: torch.Tensor, group: Any = None) -> list[torch.Tensor]:
    """Each process's rows in rank order, of a group's processes where one is given; a process may
    hold more rows than another, or none.

    Shapes: ``(N_r, ...)`` on rank r ``-> [(N_0, ...), (N_1, ...), ...]``.

    >>> gather(torch.tensor([1, 2]))
    [tensor([1, 2])]
    """
    if world_size() == 1:
        return [x]
    from torchmetrics.utilities.distributed import gather_all_tensors  # seconds to load

    parts: list[torch.Tensor] = gather_all_tensors(x, group)
    return parts


def first_says(x: T) -> T:
    """The first process's object, on all of them.

    >>> first_says("one")
    'one'
    """
    if world_size() == 1:
        return x
    said: list[Any] = [x]
    dist.broadcast_object_list(said)
    return said[0]  # type: ignore[no-any-return]
