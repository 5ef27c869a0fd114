"""Hostile batches through every filter, against an SVD in float64 that shares no code with it."""

import math
import random

import pytest
import torch
from support.drills import draws, record, tries
from support.hostile import batch, describe

from rdm_solo.filters import SpectralFilter, decompose, relative_cut

FILTERS = [("pow", p) for p in (-3, -2, -1, -0.5, 0, 0.5, 1, 3)]
FILTERS += [("identity", None), ("log", None), ("log1p", None), ("log1p_sq", None)]
GAINS = {
    "identity": torch.ones_like,
    "log": torch.log,
    "log1p": torch.log1p,
    "log1p_sq": lambda sigma: torch.logaddexp(torch.zeros_like(sigma), 2 * sigma.log()),
}


def exact(x: torch.Tensor, name: str, p: float | None):
    """Return values, an error bound and the rows that must be zero; None where a cut is near.

    With eps of float64, delta = 100 eps (n + k) bounds the relative error of a Gram matrix. A
    direction's squared singular value is off by delta * largest^2, so near the least one kept the
    gain is off by about (1 + |slope of log g|) * delta / (2 share^2), share = sigma_r / sigma_1.
    Mixed eigenvectors change the result by the difference of their gains, with the same bound.
    """
    n, k = x.shape
    is_float64 = x.dtype == torch.float64
    x64 = x.detach().double()
    x64 = x64.where(x64.isfinite().all(1)[:, None], 0.0)
    size = float(x64.abs().max())
    if size == 0:
        return x64, 0.0, torch.ones(n, dtype=torch.bool)
    y = x64 / size
    _, sigma, vh = torch.linalg.svd(y, full_matrices=False)
    cut = relative_cut(x.dtype, n, k) * sigma[0]
    row_cut = relative_cut(torch.float64 if is_float64 else torch.float32, n, k)
    lengths = y.norm(dim=1) / y.norm() * math.sqrt(n)
    distances = torch.cat([sigma / cut, lengths / row_cut]).log().abs()
    if (distances < 0.1).any():
        return None
    sigma, vh = sigma[sigma > cut], vh[sigma > cut]
    gain = sigma.pow(p) if name == "pow" else GAINS[name](sigma * size)
    largest = float(gain.abs().max())
    if largest < 1e-290:
        return None  # log(1 + sigma^2) of 1e-160 has no digits in float64
    share = float(sigma[-1] / sigma[0])
    delta = 100 * torch.finfo(torch.float64).eps * (n + k) / (share if is_float64 else share**2)
    peak = float((gain * sigma).abs().max())
    bound = (1 + abs(p or 2)) * delta * largest * float(sigma[0]) / max(peak, 1e-300)
    is_short = lengths <= row_cut
    values = (y @ (vh.mT * gain) @ vh).masked_fill(is_short[:, None], 0.0)
    return values, bound, is_short


def direction(x: torch.Tensor) -> torch.Tensor:
    """Return a matrix scaled to norm 1."""
    x = x.detach().double()
    x = x / x.abs().max().clamp_min(1e-300)
    return x / x.norm().clamp_min(1e-300)


def find_fault(x: torch.Tensor, name: str, p: float | None, branch: str) -> str | None:
    """Return what is wrong with a filter on that batch, or None."""
    leaf = x.detach().requires_grad_()
    is_broken = not x.isfinite().all(1).any()
    try:
        out = SpectralFilter(branch, name, p)(leaf)
    except FloatingPointError:
        return None if is_broken else "finite rows were refused"
    if is_broken:
        return "a batch without a finite row was accepted"
    if out.dtype != x.dtype or out.shape != x.shape or not out.isfinite().all():
        return "the output is not finite, or has another dtype or shape"
    if branch == "online":
        rng = torch.Generator().manual_seed(1)
        out.backward(torch.randn(x.shape, generator=rng).to(x.dtype))
        # float16 cannot hold gradients times 65504; a loss scaler checks for that.
        if x.dtype != torch.float16 and not leaf.grad.isfinite().all():
            return "the gradient is not finite"
    expected = exact(x, name, p)
    if expected is None:
        return None
    values, bound, is_short = expected
    if out[is_short].any() or decompose(x.detach()).negligible_rows != is_short.sum():
        return "the wrong rows are zero"
    # Add the rounding to the dtype, which is coarser near the end of its range.
    info = torch.finfo(x.dtype)
    largest = float(out.detach().double().abs().max())
    bound += 4 * info.eps
    bound += 2 * info.tiny * info.eps * math.sqrt(x.numel()) / max(largest, 1e-320)
    error = float((direction(out) - direction(values)).norm())
    if error > bound and bound < 1e-3 and values.any():
        return f"values are off by {error:.1e}, bound {bound:.1e}"
    return None


@pytest.mark.drill
def test_hostile_batches_through_the_filters():
    draw = draws("filters")
    number = tries(120, 6000)
    faults = []
    for _ in range(number):
        seed = draw.getrandbits(32)
        x = batch(random.Random(seed), largest=draw.choice([4, 16, 40, 40, 200]))
        name, p = draw.choice(FILTERS)
        branch = draw.choice(["online", "target"])
        if fault := find_fault(x, name, p, branch):
            faults.append(f"{seed} {describe(x)} {branch} {name} {p}: {fault}")
    print(*faults[:40], sep="\n")
    record("hostile batches through filters", number, number - len(faults))
