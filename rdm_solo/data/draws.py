"""Uniform random numbers that depend only on seed, epoch, view and sample."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

# Columns of a row. The first TRIES are areas of a crop, the next TRIES its aspect ratios, and four
# from FACTORS on are strengths of the jitter. Every pipeline reads the same columns, so enabling
# one operation does not change the draws of the others.
TRIES = 10
TOP = 20
LEFT = 21
FLIP = 22
ROTATE = 23
JITTER = 24
FACTORS = 25
ORDER = 29
GREY = 30
BLUR = 31
SIGMA = 32
SOLARIZE = 33
DRAWS = 34


def generator(*key: int | str) -> torch.Generator:
    """Return a CPU generator whose seed is a hash of ``key``, such as ``(seed, epoch, view)``.

    torch's CPU generator keeps only 32 bits of a seed. With a hash instead of a sum, close or
    structured keys get unrelated seeds.

    >>> torch.rand(1, generator=generator(0, 1)) == torch.rand(1, generator=generator(1, 0))
    tensor([False])
    """
    return torch.Generator().manual_seed(_hash(key, 4))


def random_rows(index: Sequence[int] | Tensor, *key: int | str) -> Tensor:
    """Return uniform rows of ``DRAWS`` numbers that depend only on ``key`` and their ``index``.

    They come from SplitMix64 (Steele, Lea and Flood, 2014). It computes any number from its
    position, so a row of a table of millions costs as much as another, and no table is kept. Each
    number has 24 random bits.

    >>> rows = random_rows([7, 1_000_000], 0, "a key")
    >>> rows.shape, torch.equal(random_rows([1_000_000], 0, "a key")[0], rows[1])
    (torch.Size([2, 34]), True)
    """
    # The k-th state of SplitMix64 is the seed plus k times a constant, modulo 2**64.
    rows = np.asarray(index, dtype=np.uint64)[:, None]
    columns = np.arange(1, DRAWS + 1, dtype=np.uint64)
    z: Any = DRAWS * rows + columns
    z *= 0x9E3779B97F4A7C15
    z += _hash(key, 8)
    # Its finaliser mixes the bits of a state.
    z ^= z >> 30
    z *= 0xBF58476D1CE4E5B9
    z ^= z >> 27
    z *= 0x94D049BB133111EB
    z ^= z >> 31
    z >>= 40
    return torch.from_numpy(z.astype(np.float32) * 2**-24)


def _hash(key: tuple[int | str, ...], size: int) -> int:
    """Return a hash of ``size`` bytes."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=size)
    return int.from_bytes(digest.digest(), "little")
