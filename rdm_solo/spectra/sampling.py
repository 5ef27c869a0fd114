"""A sample of rows that depends on what the rows are, not on their order, batches or processes.

Each row gets a hash of its bits, and the rows with the smallest hashes stay. The smallest of a
union are among the smallest of its parts, so several processes together keep what one would.

Rows as long as a DINO head's are 256 KiB each: nothing here copies more than a block of columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

__all__ = ["LAST", "blocks", "exchange", "keys", "smallest"]

# The key of rows that are not to be taken: no hash is as large.
LAST = 2**63 - 1
# How many numbers are copied or widened at a time: as int64 or float64 they stay in a CPU's cache.
BLOCK = 2**18


def blocks(x: Tensor) -> Iterator[slice]:
    """Columns of ``x``, as many at a time as make about ``BLOCK`` numbers.

    >>> [columns.stop for columns in blocks(torch.zeros(1, 2 * BLOCK))]
    [262144, 524288]
    """
    step = max(256, BLOCK // max(1, len(x)))
    for start in range(0, x.shape[1], step):
        yield slice(start, min(start + step, x.shape[1]))


def keys(parts: Sequence[Tensor], whole: Tensor) -> Tensor:
    """A hash of each row of all parts together; rows that are not whole get the last key.

    Integers alone, modulo 2^64, on the bits of the numbers: no rounding, whatever the order. A
    tensor that is several of the parts is read once.

    Shapes: ``[(N, k), ...], (N,) -> (N,)``, int64.

    >>> x = torch.tensor([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]])
    >>> a, b, c = keys([x], torch.tensor([True, True, True])).tolist()
    >>> a == c, a == b
    (True, False)
    """
    widths = [x.shape[1] * _words(x) for x in parts]
    odd = 2 * _mixed(torch.arange(sum(widths), device=whole.device)) + 1
    factors: dict[int, Tensor] = {}
    for part, own in zip(parts, torch.split(odd, widths)):
        factors[id(part)] = factors[id(part)] + own if id(part) in factors else own
    total = torch.zeros(len(whole), dtype=torch.long, device=whole.device)
    for part in {id(x): x for x in parts}.values():
        words = _words(part)
        for columns in blocks(part):
            own = factors[id(part)][columns.start * words : columns.stop * words]
            total += (_bits(part[:, columns]) * own).sum(1)
    return torch.where(whole, _mixed(total).clamp_max(LAST - 1), LAST)


def _words(x: Tensor) -> int:
    return 2 if x.dtype == torch.double else 1


def _bits(x: Tensor) -> Tensor:
    """int32 words: the sign of a float64 as one int64 would reach the hash's highest bit alone,
    and any two changes of sign would cancel."""
    bits = x.contiguous() if x.dtype == torch.double else x.float()
    return bits.view(torch.int)


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


def exchange(rows: Tensor, key: Tensor, parts: Sequence[Tensor], new: Tensor) -> None:
    """In place: of the rows kept and the new ones, those with the smallest keys.

    The i-th smallest new key enters where it is below the i-th largest of those kept. As many
    places are written whatever enters, so the host need not know; the rest get what they had.

    Shapes: ``(N, P, k), (N,), P times (B, k), (B,)``.

    >>> rows, key = torch.tensor([[[1.0]], [[2.0]]]), torch.tensor([7, LAST])
    >>> exchange(rows, key, [torch.tensor([[3.0], [4.0], [5.0]])], torch.tensor([9, 5, 8]))
    >>> rows.flatten(), key
    (tensor([1., 4.]), tensor([7, 5]))
    """
    size = min(len(key), len(new))
    largest, places = key.topk(size)
    least, chosen = new.topk(size, largest=False)
    enters = (least < largest)[:, None]
    key.index_copy_(0, places, least.minimum(largest))
    for kept, part in zip(rows.unbind(1), parts):
        for columns in blocks(part):
            old = kept[:, columns].index_select(0, places)
            entrants = part[:, columns].index_select(0, chosen).to(old.dtype)
            kept[:, columns].index_copy_(0, places, torch.where(enters, entrants, old))


def smallest(key: Tensor, size: int) -> Tensor:
    """The places of the ``size`` smallest keys, in their order, without any last key.

    >>> smallest(torch.tensor([7, LAST, 9, 5]), size=2), smallest(torch.tensor([LAST, 9]), size=2)
    (tensor([3, 0]), tensor([1]))
    """
    least, places = key.topk(min(size, len(key)), largest=False)
    return places[least < LAST]
