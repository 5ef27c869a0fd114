"""A sample of rows that depends on what the rows are, not on their order, batches or processes.

Each row gets a hash of its bits, and the rows with the smallest hashes stay. The smallest of a
union are among the smallest of its parts, so several processes together keep what one would.

A row of a DINO head is 256 KiB long: nothing here copies more than a few rows at a time.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from rdm_solo.distributed import gather

# The hash of rows that are not to be taken: no other is as large.
LAST = 2**63 - 1
# How many numbers are copied or widened at a time: as int64 or float64 they stay in a CPU's cache.
BLOCK = 2**18


def few_rows(rows: int, width: int) -> Iterator[slice]:
    """Slices of that many rows, each of about ``BLOCK`` numbers.

    >>> list(few_rows(3, BLOCK // 2))
    [slice(0, 2, None), slice(2, 3, None)]
    """
    step = max(1, BLOCK // width)
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def row_hashes(parts: Sequence[Tensor], whole: Tensor) -> Tensor:
    """A hash of each row of all parts together; rows that are not whole get the last one.

    A random number plus the row's 32-bit words, each times a random odd factor, modulo 2^64. Its
    highest 32 bits are uniform, and independent for any two rows (Lemire and Kaser,
    2014). Integers alone: no rounding, whatever the order.

    Shapes: ``[(N, k), ...], (N,) -> (N,)``, int64.

    >>> x = torch.tensor([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]])
    >>> a, b, c = row_hashes([x], torch.tensor([True, True, True])).tolist()
    >>> a == c, a == b
    (True, False)
    """
    draw = torch.Generator().manual_seed(0)

    def random(count: int) -> Tensor:
        numbers = torch.randint(-(2**63), LAST, (count,), generator=draw)
        return numbers.to(whole.device, non_blocking=True)  # else the host waits for the device

    total = random(1).repeat(len(whole))
    for part in parts:
        factors = random(part.shape[1] * (2 if part.dtype == torch.double else 1)) | 1
        for rows in few_rows(*part.shape):
            block = part[rows] if part.dtype == torch.double else part[rows].float()
            total[rows] += (block.contiguous().view(torch.int) * factors).sum(1)
    return torch.where(whole, total.clamp_max(LAST - 1), LAST)


def keep_smallest(kept: Tensor, key: Tensor, parts: Sequence[Tensor], new: Tensor) -> None:
    """In place: of the rows kept and the new ones, those with the smallest hashes.

    The i-th smallest new hash enters where it is below the i-th largest of those kept. As many
    places are written whatever enters, so the host need not know; the rest get what they had.

    Shapes: ``(N, P, k), (N,), P times (B, k), (B,)``.

    >>> kept, key = torch.tensor([[[1.0]], [[2.0]]]), torch.tensor([7, LAST])
    >>> keep_smallest(kept, key, [torch.tensor([[3.0], [4.0], [5.0]])], torch.tensor([9, 5, 8]))
    >>> kept.flatten(), key
    (tensor([1., 4.]), tensor([7, 5]))
    """
    size = min(len(key), len(new))
    largest, places = key.topk(size)
    least, chosen = new.topk(size, largest=False)
    enters = (least < largest)[:, None]
    key[places] = least.minimum(largest)
    for output, part in zip(kept.unbind(1), parts):
        for rows in few_rows(size, output.shape[1]):
            entering = part[chosen[rows]].to(output.dtype)
            output[places[rows]] = entering.where(enters[rows], output[places[rows]])


def places(kept: Sequence[Tensor], keys: Sequence[Tensor], empty: Tensor) -> tuple[Tensor, Tensor]:
    """One set of places with the rows of all given ones, and their hashes.

    What is given is taken as it is where it is one set already; ``empty`` is written over.

    Shapes: ``(n, P, k) each, (n,) each, (N, P, k) -> (N, P, k), (N,)``.

    >>> rows, keys = torch.ones(1, 1, 1), torch.tensor([7])
    >>> places([rows, rows], [keys, keys], torch.empty(2, 1, 1))[1]
    tensor([7, 7])
    """
    if len(kept) == 1 and len(kept[0]) == len(empty):
        return kept[0], keys[0]
    key = torch.full((len(empty),), LAST, device=empty.device)
    for rows, theirs in zip(kept, keys):
        keep_smallest(empty, key, rows.unbind(1), theirs)
    return empty, key


def without_ruled_out(kept: Tensor, key: Tensor, group: Any = None) -> tuple[Tensor, Tensor]:
    """This process's rows but those that others' smaller hashes rule out, in the dtype of all; the
    others of a group where one is given.

    >>> without_ruled_out(torch.tensor([[[1.0]], [[2.0]]]), torch.tensor([7, LAST]))[1]
    tensor([7])
    """
    double = torch.cat(gather(key.new_tensor([kept.dtype == torch.double]), group)).any()
    limit = torch.cat(gather(key, group)).sort().values[len(key) - 1]
    stays = (key <= limit) & (key < LAST)
    return kept[stays].double() if double else kept[stays], key[stays]
