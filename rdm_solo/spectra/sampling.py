"""A sample of rows that does not depend on their order, batches or processes.

Each row gets a hash of its bits, and the rows with the smallest hashes are kept. The smallest
hashes of a union are among the smallest of its parts, so the rows do not depend on the number of
processes. A row of a DINO head takes 256 KiB, so only a few rows are copied at a time.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from rdm_solo.ground.distributed import gather

# The hash of rows that are never kept; all other hashes are smaller.
LAST = 2**63 - 1
# Number of elements converted at a time, so that int64 or float64 fits in a CPU's cache.
BLOCK = 2**18
# The same on a GPU, where launching many operators takes longer than the work: up to 128 MiB.
GPU_BLOCK = 2**24


def rows_at_a_time(x: Tensor) -> int:
    """Return how many rows of ``x`` make a block."""
    elements = BLOCK if x.device.type == "cpu" else GPU_BLOCK
    return max(1, elements // x.shape[1])


def row_hashes(parts: Sequence[Tensor], valid: Tensor) -> Tensor:
    """Return one hash per row over all parts; rows that are not valid get ``LAST``.

    The hash is a random number plus the row's 32-bit words, each times a random odd factor, modulo
    2^64. Its highest 32 bits are uniform and pairwise independent (Lemire and Kaser, 2014).

    Shapes: ``[(N, k), ...], (N,) -> (N,)``, int64.

    >>> x = torch.tensor([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]])
    >>> a, b, c = row_hashes([x], torch.tensor([True, True, True])).tolist()
    >>> a == c, a == b
    (True, False)
    """
    draw = torch.Generator().manual_seed(0)

    def random(count: int) -> Tensor:
        numbers = torch.randint(-(2**63), LAST, (count,), generator=draw)
        return numbers.to(valid.device, non_blocking=True)  # a blocking copy would synchronise

    hashes = random(1).repeat(len(valid))
    for part in parts:
        dtype = torch.promote_types(part.dtype, torch.float)
        words = part.shape[1] * dtype.itemsize // 4
        factors = random(words) | 1
        step = rows_at_a_time(part)
        for rows, sums in zip(torch.split(part, step), torch.split(hashes, step)):
            rows = rows.to(dtype).contiguous()
            products = rows.view(torch.int) * factors
            sums += products.sum(1)
    hashes = hashes.clamp_max(LAST - 1)
    return torch.where(valid, hashes, LAST)


def keep_smallest(
    sample: Tensor,
    hashes: Tensor,
    parts: Sequence[Tensor],
    new: Tensor,
) -> None:
    """Replace kept rows and their hashes, in place, by new rows with smaller hashes.

    The i-th smallest new hash replaces the i-th largest kept hash if it is smaller. Unchanged slots
    are rewritten as well, because reading the number of new rows would synchronise.

    Shapes: ``(N, P, k), (N,), P times (B, k), (B,)``.

    >>> sample, hashes = torch.tensor([[[1.0]], [[2.0]]]), torch.tensor([7, LAST])
    >>> rows = torch.tensor([[3.0], [4.0], [5.0]])
    >>> keep_smallest(sample, hashes, [rows], torch.tensor([9, 5, 8]))
    >>> sample.flatten(), hashes
    (tensor([1., 4.]), tensor([7, 5]))
    """
    size = min(len(hashes), len(new))
    largest, slots = hashes.topk(size)
    smallest, chosen = new.topk(size, largest=False)
    enters = (smallest < largest)[:, None]
    hashes[slots] = smallest.minimum(largest)
    for kept, part in zip(sample.unbind(1), parts):
        new_rows = part[chosen].to(kept.dtype)
        old_rows = kept[slots]
        kept[slots] = new_rows.where(enters, old_rows)


def gather_smallest(sample: Tensor, hashes: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Return the kept rows of each process that are among the N smallest of all, and their hashes.

    Together the processes send N rows, unless they have fewer.
    """
    all_hashes = torch.cat(gather(hashes))
    ascending = all_hashes.sort().values
    limit = ascending[len(hashes) - 1]
    is_smallest = hashes <= limit
    sample = sample[is_smallest]
    hashes = hashes[is_smallest]
    return gather(sample), gather(hashes)
