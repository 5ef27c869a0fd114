"""Hostile batches through every filter, against an SVD in float64 that shares no code with it."""

import math
import random

import pytest
import torch
from support.drills import draws, record, tries
from support.hostile import batch, describe

from rdm_solo.filters import SpectralFilter, decompose, relative_cut

FILTERS = [("pow", p) for p in (-10, -2, -1, -0.5, 0, 0.5, 1, 3, 10)]
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
    wide = x.detach().double()
    whole = wide.isfinite().all(1)
    wide = wide.where(whole[:, None] & (wide.abs() >= 2.0**-960), 0.0)
    size = float(wide.abs().max())
    if size == 0:
        return torch.zeros_like(wide), 0.0, torch.ones(n, dtype=torch.bool)
    y = wide / size
    _, sigma, vh = torch.linalg.svd(y, full_matrices=False)
    double = x.dtype == torch.float64
    cut = relative_cut(x.dtype, n, k) * sigma[0]
    row_cut = relative_cut(x.dtype if double else torch.float32, n, k)
    lengths = y.norm(dim=1) / y.norm() * math.sqrt(n)
    if ((sigma / cut).log().abs() < 0.1).any() or ((lengths / row_cut).log().abs() < 0.1).any():
        return None
    sigma, vh = sigma[sigma > cut], vh[sigma > cut]
    gain = sigma.pow(p) if name == "pow" else GAINS[name](sigma * size)
    if float(gain.abs().max()) < 1e-290:
        return None  # log(1 + sigma^2) of 1e-160 has no digits in float64
    share = float(sigma[-1] / sigma[0])
    delta = 100 * torch.finfo(torch.float64).eps * (n + k) / (share if double else share**2)
    steep = float((gain * sigma).abs().max())
    bound = (1 + abs(p or 2)) * delta * float(gain.abs().max() * sigma[0]) / max(steep, 1e-300)
    short = lengths <= row_cut
    return (y @ (vh.mT * gain) @ vh).masked_fill(short[:, None], 0.0), bound, short


def direction(x: torch.Tensor) -> torch.Tensor:
    """Return a matrix scaled to norm 1."""
    x = x.double() / x.double().abs().max().clamp_min(1e-300)
    return x / x.norm().clamp_min(1e-300)


def fault(x: torch.Tensor, name: str, p: float | None, branch: str) -> str | None:
    """Return what is wrong with a filter on that batch, or None."""
    leaf = x.detach().requires_grad_()
    broken = not x.isfinite().all(1).any()
    try:
        out = SpectralFilter(branch, name, p)(leaf)
    except FloatingPointError:
        return None if broken else "finite rows were refused"
    if broken or out.dtype != x.dtype or out.shape != x.shape or not out.isfinite().all():
        return "the output is not finite, or of another dtype or shape"
    if branch == "online":
        out.backward(torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(x.dtype))
        # float16 has no room for gradients times 65504; a loss scaler watches for that.
        if x.dtype != torch.float16 and not leaf.grad.isfinite().all():
            return "the gradient is not finite"
    wanted = exact(x, name, p)
    if wanted is None:
        return None
    values, bound, short = wanted
    if out[short].any() or int(decompose(x.detach()).negligible_rows) != int(short.sum()):
        return "other rows are zero than those without a direction"
    info, largest = torch.finfo(x.dtype), float(out.detach().double().abs().max())
    # Rounding to the dtype, and near its end to its least step.
    bound += 4 * info.eps
    bound += 2 * info.tiny * info.eps * math.sqrt(x.numel()) / max(largest, 1e-320)
    if bound < 1e-3 and values.any():
        error = float((direction(out.detach()) - direction(values)).norm())
        return f"values are off by {error:.1e}, bound {bound:.1e}" if error > bound else None
    return None


@pytest.mark.drill
def test_hostile_batches_through_the_filters():
    draw, number, faults = draws("filters"), tries(120, 6000), []
    for _ in range(number):
        seed = draw.getrandbits(32)
        x = batch(random.Random(seed), largest=draw.choice([4, 16, 40, 40, 200]))
        name, p = draw.choice(FILTERS)
        branch = draw.choice(["online", "target"])
        if problem := fault(x, name, p, branch):
            faults.append(f"{seed} {describe(x)} {branch} {name} {p}: {problem}")
    print(*faults[:40], sep="\n")
    record("hostile batches through filters", number, number - len(faults))
