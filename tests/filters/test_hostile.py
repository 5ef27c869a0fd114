"""Hostile batches through every filter, against an SVD in float64 that shares no code with it."""

from __future__ import annotations

import logging
import math
import random

import pytest
import torch
from support.drills import draws, record_faults, tries
from support.hostile import batch, describe

from rdm_solo.filters import SpectralFilter, relative_cut

POWERS = (-10, -2, -1, -0.5, 0, 0.5, 1, 3, 10)
FILTERS = [("pow", p) for p in POWERS]
FILTERS += [("identity", None), ("log", None), ("log1p", None), ("log1p_sq", None)]
GAINS = {
    "identity": torch.ones_like,
    "log": torch.log,
    "log1p": torch.log1p,
    "log1p_sq": lambda sigma: torch.logaddexp(torch.zeros_like(sigma), 2 * sigma.log()),
}


def exact(x: torch.Tensor, name: str, p: float | None):
    """Values, W, an error bound, and the rows that have to be zero; or None where the cut is near.

    The batch is divided by its largest number, so that every square is in range. With eps of
    float64, delta = 100 eps (n + k) bounds the relative error of a Gram matrix's product and
    decomposition. A direction's squared singular value is off by delta * largest^2, so near the
    least one kept, sigma_r, the gain is off by about (1 + |slope of log g|) * delta / (2 share^2),
    share = sigma_r / sigma_1; eigenvectors of two directions mix by delta / gap, but what mixes
    them into the result is the difference of their gains, which has the same bound.
    """
    n, k = x.shape
    digits = x.dtype
    wide = x.detach().double()
    finite = wide.isfinite().all(1)
    wide = wide.where(finite[:, None] & (wide.abs() >= 2.0**-960), 0.0)  # as documented
    size = float(wide.abs().max())
    if size == 0:
        return torch.zeros_like(wide), torch.zeros(k, k).double(), 0.0, torch.ones(n, dtype=bool)
    y = wide / size
    _, sigma, vh = torch.linalg.svd(y, full_matrices=False)
    cut = relative_cut(digits, n, k) * sigma[0]
    row_cut = relative_cut(digits if digits == torch.float64 else torch.float32, n, k)
    lengths = y.norm(dim=1) / y.norm() * math.sqrt(n)
    short = lengths <= row_cut
    if ((sigma / cut).log().abs() < 0.1).any() or ((lengths / row_cut).log().abs() < 0.1).any():
        return None
    kept = sigma > cut
    sigma, vh = sigma[kept], vh[kept]
    gain = sigma.pow(p) if name == "pow" else GAINS[name](sigma * size)
    if float(gain.abs().max()) < 1e-290:
        return None  # log(1 + sigma^2) of 1e-160 has no digits in float64
    w = (vh.mT * gain) @ vh
    eps = torch.finfo(torch.float64).eps
    share = float(sigma[-1] / sigma[0])
    delta = 100 * eps * (n + k) / (share if digits == torch.float64 else share**2)
    slope = 1 + (abs(p) if name == "pow" else 2)
    steep = float((gain * sigma).abs().max())
    bound = slope * delta * float(gain.abs().max()) * float(sigma[0]) / max(steep, 1e-300)
    return (y @ w).masked_fill(short[:, None], 0.0), w, bound, short


def subnormal(got: torch.Tensor) -> float:
    """What rounding to the least step of the dtype costs, relative to the whole."""
    info = torch.finfo(got.dtype)
    step = info.smallest_normal * info.eps * math.sqrt(got.numel())
    largest = float(got.detach().double().abs().max())
    norm = float((got.detach().double() / max(largest, 1e-300)).norm()) * largest
    return 2 * step / max(norm, 1e-320)


def off(got: torch.Tensor, want: torch.Tensor) -> float:
    """The distance of two matrices up to a positive constant, relative to the wanted one."""
    a, b = got.double(), want.double()
    a, b = (m / m.abs().max().clamp_min(1e-300) for m in (a, b))
    return float((a / a.norm().clamp_min(1e-300) - b / b.norm().clamp_min(1e-300)).norm())


def fault(x: torch.Tensor, name: str, p: float | None, branch: str, caplog) -> str | None:
    """What is wrong with a filter on that batch, or None."""
    finite = x.isfinite().all(1)
    module = SpectralFilter(branch, name, p)
    leaf = x.detach().requires_grad_()
    caplog.clear()
    try:
        out = module(leaf)
    except FloatingPointError as error:
        return None if not finite.any() and "NaN or infinity" in str(error) else f"raised {error}"
    if not finite.any():
        return "a batch of NaN alone was taken"
    if out.dtype != x.dtype or out.shape != x.shape or not out.isfinite().all():
        return "the output is not finite, or of another dtype or shape"
    wanted = exact(x, name, p)
    rounding = 4 * torch.finfo(x.dtype).eps
    gradient = None
    if branch == "online":
        gradient = torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(x.dtype)
        out.backward(gradient)
        # float16 has no room for gradients that multiply 65504; a loss scaler watches for that.
        if x.dtype != torch.float16 and not leaf.grad.isfinite().all():
            return "the gradient is not finite"
    elif out.requires_grad:
        return "a target has a gradient"
    if wanted is not None:
        values, w, bound, short = wanted
        if out[short].any():
            return "a row without a direction is not zero"
        if module.dropped_rows != int(short.sum()):
            return f"{module.dropped_rows} rows were dropped, {int(short.sum())} expected"
        if bound < 1e-3 and values.any():
            limit = bound + rounding + subnormal(out)
            if (error := off(out.detach(), values)) > limit:
                return f"values are off by {error:.1e}, bound {limit:.1e}"
            if gradient is not None and leaf.grad.isfinite().all():
                gradient[short] = 0
                back = gradient.double() @ w
                # W is kept in float32, and its products there add up k roundings.
                least = 2 * torch.finfo(torch.float32).eps * math.sqrt(len(w))
                least *= float(torch.linalg.matrix_norm(w, 2) * gradient.double().norm())
                least /= max(float(back.norm()), 1e-300)
                limit = bound + rounding + least + subnormal(leaf.grad)
                if (error := off(leaf.grad, back)) > limit:
                    return f"gradients are off by {error:.1e}, bound {limit:.1e}"
    said = len(caplog.records)
    module(x.detach())
    if len(caplog.records) != said:
        return "a warning was said twice"
    words = " ".join(r.message for r in caplog.records)
    if not finite.all() and "NaN or infinity" not in words:
        return "broken rows were dropped in silence"
    return None


@pytest.mark.drill
def test_hostile_batches_through_the_filters(caplog):
    draw = draws("filters")
    caplog.set_level(logging.WARNING)

    def attempt(seed):
        x = batch(random.Random(seed), largest=draw.choice([4, 16, 40, 40, 200]))
        name, p = draw.choice(FILTERS)
        branch = draw.choice(["online", "target"])
        words = f"{describe(x)} {branch} {name} {p}"
        return words, lambda: fault(x, name, p, branch, caplog)

    record_faults("hostile batches through filters", draw, tries(120, 6000), attempt)
