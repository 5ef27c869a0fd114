"""Batches that are collapsed or degenerate, with known singular values and vectors.

Solvers of a GPU have failed on such matrices. The expected result needs no decomposition.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from rdm_solo.filters import SpectralFilter, get

FILTERS = [
    ("target", "pow", -0.5),
    ("target", "pow", -1.0),
    ("online", "log1p", None),
    ("online", "pow", -0.5),
]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# Errors are at most this plus the eps of the batch's dtype. Measured on a CPU: at most half of it.
EXACT = 1e-5


class Factors(NamedTuple):
    """A batch U diag(sigma) V^T in float64; U and V have orthonormal columns."""

    u: Tensor
    sigma: Tensor
    v: Tensor

    def batch(self) -> Tensor:
        return (self.u * self.sigma) @ self.v.mT


def gaussian(rows: int, columns: int, seed: int, device: str) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=rng, dtype=torch.float64).to(device)


def directions(rows: int, columns: int, seed: int, device: str) -> Tensor:
    """Return random orthonormal columns."""
    return torch.linalg.qr(gaussian(rows, columns, seed, device)).Q


def of_rank(r: int, n: int, k: int, sigma: Tensor, device: str) -> Factors:
    left = directions(n, r, 0, device)
    right = directions(k, r, 1, device)
    return Factors(left, sigma.double().to(device), right)


def zeros(n: int, k: int, device: str) -> Factors:
    factors = rank_1(n, k, device)
    return factors._replace(sigma=0 * factors.sigma)


def equal_rows(n: int, k: int, device: str) -> Factors:
    ones = torch.ones(n, 1, dtype=torch.float64).to(device)
    return rank_1(n, k, device)._replace(u=ones / n**0.5)


def rank_1(n: int, k: int, device: str) -> Factors:
    return of_rank(1, n, k, torch.tensor([30.0]), device)


def rank_2(n: int, k: int, device: str) -> Factors:
    return of_rank(2, n, k, torch.tensor([30.0, 10.0]), device)


def orthonormal(n: int, k: int, device: str) -> Factors:
    """Return orthonormal rows, or columns if there are more rows: the fixed point of sigma^-1."""
    r = min(n, k)
    factors = of_rank(r, n, k, torch.ones(r), device)
    identity = torch.eye(r, dtype=torch.float64).to(device)
    if n <= k:
        return factors._replace(u=identity)
    return factors._replace(v=identity)


def subnormal(n: int, k: int, device: str, dtype: torch.dtype = torch.float32) -> Factors:
    """Return a full-rank batch whose largest number is half of the smallest normal one."""
    r = min(n, k)
    factors = of_rank(r, n, k, torch.linspace(2, 1, r), device)
    largest = factors.batch().abs().amax()
    scale = torch.finfo(dtype).tiny / 2 / largest
    return factors._replace(sigma=factors.sigma * scale)


KINDS = {
    "zeros": zeros,
    "equal rows": equal_rows,
    "rank 1": rank_1,
    "rank 2": rank_2,
    "orthonormal": orthonormal,
    "subnormal": subnormal,
}


def difference(actual: Tensor, expected: Tensor) -> float:
    """Return the distance of two matrices scaled to norm 1; a filter may scale all rows alike."""
    actual = actual.detach().double()
    if not expected.any():
        return float(actual.norm())  # 0 as well
    # Dividing by the largest number first avoids underflow.
    units = [x / x.abs().amax() for x in (actual, expected)]
    units = [x / x.norm() for x in units]
    return float((units[0] - units[1]).norm())


def errors(kind: str, shape: tuple[int, int], device: str) -> dict[str, float]:
    """Return each filter's errors in rows and gradients, in every dtype, divided by the bound."""
    results = {}
    for dtype in DTYPES:
        bound = EXACT + torch.finfo(dtype).eps
        if kind == "subnormal":
            factors = subnormal(*shape, device, dtype)
            bound = EXACT + 8 * torch.finfo(dtype).eps  # subnormal numbers have fewer digits
        else:
            factors = KINDS[kind](*shape, device)
        x = factors.batch().to(dtype)
        grad = gaussian(*shape, 2, device).to(dtype)
        for branch, function, p in FILTERS:
            leaf = x.clone().requires_grad_()
            module = SpectralFilter(branch, function, p)
            out = module(leaf)
            module.report()
            gain = factors.sigma
            if kind != "zeros":
                gain = get(function, p)(gain)
            expected = factors._replace(sigma=factors.sigma * gain).batch()
            name = f"{branch} {function} {p}, {out.dtype}"
            assert out.dtype == dtype
            results[name] = difference(out, expected) / bound
            if branch == "online":
                out.backward(grad)
                w = Factors(factors.v, gain, factors.v).batch()
                error = difference(leaf.grad, grad.double() @ w)
                results[f"{name}, gradient"] = error / bound
    return results
