"""Uniform random numbers that depend only on seed, epoch, view and sample."""

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

# Columns of a row. The first TRIES are areas of a crop, the next TRIES its aspect ratios. FACTORS
# and the next three are strengths of the jitter. Every pipeline reads the same columns, so enabling
# one operation does not change the draws of the others.
TRIES = 10
TOP, LEFT, FLIP, ROTATE, JITTER, FACTORS = range(20, 26)
ORDER, GREY, BLUR, SIGMA, SOLARIZE = range(29, 34)
DRAWS = 34


def generator(*key: int | str) -> torch.Generator:
    """Return a CPU generator whose seed is a hash of ``key``, such as ``(seed, epoch, view)``.

    torch's CPU generator keeps only 32 bits of a seed. With a hash instead of a sum, close or
    structured keys get unrelated seeds.

    >>> torch.rand(1, generator=generator(0, 1)) == torch.rand(1, generator=generator(1, 0))
    tensor([False])
    """
    digest = hashlib.blake2b(repr(key).encode(), digest_size=4).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))


def random_rows(index: Sequence[int] | Tensor, *key: int | str) -> Tensor:
    """Return uniform rows of ``DRAWS`` numbers that depend only on ``key`` and their ``index``.

    SplitMix64 is counter-based (a row's number times a constant, then mixed), so any row of a table
    of millions costs the same and no table is kept. Each number has 24 random bits.

    >>> rows = random_rows([7, 1_000_000], 0, "a key")
    >>> rows.shape, torch.equal(random_rows([1_000_000], 0, "a key")[0], rows[1])
    (torch.Size([2, 34]), True)
    """
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    z = np.asarray(index, dtype=np.uint64)[:, None] * np.uint64(DRAWS)
    z = z + np.arange(1, DRAWS + 1, dtype=np.uint64)
    z *= np.uint64(0x9E3779B97F4A7C15)
    z += np.frombuffer(digest, dtype="<u8")
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z ^= z >> np.uint64(shift)
        z *= np.uint64(factor)
    z ^= z >> np.uint64(31)
    z >>= np.uint64(40)
    return torch.from_numpy(z.astype(np.float32) * np.float32(2**-24))
