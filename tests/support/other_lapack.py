"""A pytest plugin, ``-p support.other_lapack``: eigh and svd with another choice of what is free.

A vector's sign, and the basis of a space whose values are equal to rounding, are LAPACK's choice:
another library, version or device makes another one. Here it is a random one for each matrix.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.random import Generator
from torch import Tensor


@pytest.fixture(autouse=True, scope="session")
def _other_lapack() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, choose in (("eigh", other_eigh), ("svd", other_svd)):
            patch.setattr(torch.linalg, name, _where_values_are_known(name, choose))
        yield


def _where_values_are_known(name: str, choose: Callable[..., Any]) -> Callable[..., Any]:
    """Matrices one by one; under ``torch.func.vmap`` no values are known."""
    decompose = getattr(torch.linalg, name)

    @functools.wraps(decompose)
    def decomposed(a: Tensor, *args: Any, **options: Any) -> Any:
        found = decompose(a, *args, **options)
        if a.ndim != 2 or torch._C._functorch.is_batchedtensor(a):
            return found
        draw = np.random.default_rng(zlib.crc32(str(found).encode()))  # equal for equal matrices
        return getattr(torch.return_types, f"linalg_{name}")(choose(draw, *found))

    return decomposed


def other_eigh(draw: Generator, lam: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return lam, v @ _rotation(draw, lam, v.shape[1])


def other_svd(
    draw: Generator, u: Tensor, sigma: Tensor, vh: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    n, k = u.shape[1], len(vh)
    both = _rotation(draw, sigma, len(sigma))
    left, right = (torch.eye(size, dtype=u.dtype) for size in (n, k))
    r = _positive(sigma)
    for side in (left, right):
        side[:r, :r] = both[:r, :r]
        side[r:, r:] = _orthogonal(
            draw, len(side) - r, u.dtype
        )  # what no value ties to the other side
    return u @ left, sigma, right.mT @ vh


def _rotation(draw: Generator, values: Tensor, size: int) -> Tensor:
    """A random orthogonal matrix that mixes directions of equal values alone."""
    known = values.detach()
    made = torch.zeros(size, size, dtype=known.dtype)
    near = 4 * torch.finfo(known.dtype).eps * float(known.abs().max()) if len(known) else 0.0
    start = 0
    for end in range(1, size + 1):
        if end == size or abs(float(known[end] - known[start])) > near:
            made[start:end, start:end] = _orthogonal(draw, end - start, known.dtype)
            start = end
    return made


def _positive(sigma: Tensor) -> int:
    """How many of descending singular values are above rounding."""
    known = sigma.detach()
    floor = 4 * torch.finfo(known.dtype).eps * known.max() if len(known) else 0.0
    return int((known > floor).sum())


def _orthogonal(draw: Generator, size: int, dtype: torch.dtype) -> Tensor:
    """Random; of one direction, a sign. By numpy, which transformations of torch leave alone."""
    q, r = np.linalg.qr(draw.standard_normal((size, size)))
    return torch.from_numpy(q * np.sign(r.diagonal())).to(dtype)
