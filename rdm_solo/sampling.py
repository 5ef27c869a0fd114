"""A sample of rows that depends on what the rows are, not on their order, batches or processes.

Each row gets a hash of its bits, and the rows with the smallest hashes stay. The smallest of a
union are among the smallest of its parts, so several processes together keep what one would.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["LAST", "bottom", "keys"]

# The key of rows that are not to be taken: no hash is as large.
LAST = 2**63 - 1
# Columns whose products are held at a time.
CHUNK = 8192


def keys(parts: list[Tensor], whole: Tensor) -> Tensor:
    """A hash of each row of all parts together; rows that are not whole get the last key.

    Integers alone, modulo 2^64, on the bits of the numbers: no rounding, whatever the order.

    Shapes: ``[(N, k), ...], (N,) -> (N,)``, int64.

    >>> x = torch.tensor([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]])
    >>> a, b, c = keys([x], torch.tensor([True, True, True])).tolist()
    >>> a == c, a == b
    (True, False)
    """
    total = torch.zeros(len(whole), dtype=torch.long, device=whole.device)
    column = 0
    for part in parts:
        bits = part.view(torch.long if part.dtype == torch.double else torch.int)
        for start in range(0, part.shape[1], CHUNK):
            chunk = bits[:, start : start + CHUNK].long()
            places = torch.arange(column, column + chunk.shape[1], device=whole.device)
            total += (chunk * (2 * _mixed(places) + 1)).sum(1)
            column += chunk.shape[1]
    return torch.where(whole, _mixed(total).clamp_max(LAST - 1), LAST)


def _mixed(x: Tensor) -> Tensor:
    """Steele et al.'s SplitMix64, a bijection that spreads every bit over all."""
    x = x - 0x61C8864680B583EB
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ _shifted(x, shift)) * (factor - 2**64)
    mixed: Tensor = x ^ _shifted(x, 31)
    return mixed


def _shifted(x: Tensor, by: int) -> Tensor:
    """To the right, zeros coming in: int64's own shift repeats the sign."""
    shifted: Tensor = (x >> by) & (2 ** (64 - by) - 1)
    return shifted


def bottom(rows: Tensor, key: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The rows with the ``size`` smallest keys, and those keys, in their order.

    >>> bottom(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([7, 9, 5]), size=2)
    (tensor([[3.],
            [1.]]), tensor([5, 7]))
    """
    key, index = key.topk(min(size, len(key)), largest=False)
    return rows[index], key
