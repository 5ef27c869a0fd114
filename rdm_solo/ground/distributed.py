"""Rank, number of processes and collectives, also for runs without ``torch.distributed``."""

from typing import Any, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")


def is_distributed() -> bool:
    """Return whether this process belongs to a group."""
    return dist.is_available() and dist.is_initialized()


def world_size() -> int:
    """Return the number of processes.

    >>> world_size()
    1
    """
    if is_distributed():
        return dist.get_world_size()
    return 1


def rank() -> int:
    """Return this process's rank.

    >>> rank()
    0
    """
    if is_distributed():
        return dist.get_rank()
    return 0


def sum_over_processes(x: torch.Tensor) -> torch.Tensor:
    """Sum ``x`` over processes in place and return it.

    >>> sum_over_processes(torch.tensor([1, 2]))
    tensor([1, 2])
    """
    if world_size() > 1:
        dist.all_reduce(x)
    return x


def gather_equal(x: torch.Tensor) -> torch.Tensor:
    """Return the rows of all processes in rank order; each must have the same number of rows.

    Shapes: ``(N, ...) -> (world_size * N, ...)``.

    >>> gather_equal(torch.tensor([1, 2]))
    tensor([1, 2])
    """
    if world_size() == 1:
        return x
    rows = x.new_empty(world_size() * len(x), *x.shape[1:])
    dist.all_gather_into_tensor(rows, x.contiguous())
    return rows


def gather(x: torch.Tensor) -> list[torch.Tensor]:
    """Return each process's rows in rank order; processes may have different numbers of rows.

    Shapes: ``(N_r, ...)`` on rank r ``-> [(N_0, ...), (N_1, ...), ...]``.

    >>> gather(torch.tensor([1, 2]))
    [tensor([1, 2])]
    """
    if world_size() == 1:
        return [x]
    from torchmetrics.utilities.distributed import gather_all_tensors  # seconds to load

    return gather_all_tensors(x)


def gather_objects(value: T) -> list[T]:
    """Return each process's value in rank order; values are pickled.

    >>> gather_objects("a")
    ['a']
    """
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value)
    return values


def broadcast_object(value: T) -> T:
    """Return rank 0's value on all processes; the value is pickled.

    >>> broadcast_object("a")
    'a'
    """
    values: list[Any] = [value]
    if world_size() > 1:
        dist.broadcast_object_list(values)
    return values[0]  # type: ignore[no-any-return]
