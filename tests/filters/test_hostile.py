"""Hostile batches through every filter, against an SVD in float64 that shares no code with it."""

import math
import random

import pytest
import torch
from support.drills import draws, record, tries
from support.hostile import batch, describe

from rdm_solo.filters import SpectralFilter, decompose, relative_cut

EPS = torch.finfo(torch.float64).eps
FILTERS = [("pow", p) for p in (-3, -2, -1, -0.5, 0, 0.5, 1, 3)]
GAINS = {
    "identity": torch.ones_like,
    "log": torch.log,
    "log1p": torch.log1p,
    "log1p_sq": lambda sigma: torch.logaddexp(torch.zeros_like(sigma), 2 * sigma.log()),
}
FILTERS += [(name, None) for name in GAINS]


def unit(x):
    """Return a matrix scaled to norm 1, without overflow."""
    scaled = x / x.abs().max()
    return scaled / scaled.norm()


def exact(x, name, p):
    """Return values, an error bound and the rows that must be zero; None where a cut is near.

    With eps of float64, delta = 100 eps (n + k) bounds the relative error of a Gram matrix. A
    direction's squared singular value is off by delta * largest^2, so near the least one kept the
    gain is off by about (1 + |slope of log g|) * delta / (2 share^2), share = sigma_r / sigma_1.
    Mixed eigenvectors change the result by the difference of their gains, with the same bound.
    An SVD of float64 rows is off by delta / share.
    """
    n, k = x.shape
    is_broken = ~x.isfinite().all(1)
    y = x.double().masked_fill(is_broken[:, None], 0.0)
    size = float(y.abs().max())
    if size == 0:
        return y, 0.0, is_broken | True
    y = y / size
    _, sigma, vh = torch.linalg.svd(y, full_matrices=False)
    lengths = y.norm(dim=1)
    root_mean_square = lengths.square().mean().sqrt()
    digits, power = torch.float32, 2
    if x.dtype == torch.float64:
        digits, power = torch.float64, 1
    cut = sigma[0] * relative_cut(x.dtype, n, k)
    row_cut = root_mean_square * relative_cut(digits, n, k)
    above_cut = sigma / cut
    above_row_cut = lengths / row_cut
    distances = torch.cat([above_cut, above_row_cut]).log()
    if distances.abs().min() < 0.1:
        return None

    kept = above_cut > 1
    sigma, vh = sigma[kept], vh[kept]
    gain = sigma.pow(p) if name == "pow" else GAINS[name](sigma * size)
    largest = float(gain.abs().max())
    if largest < 1e-290:
        return None  # log(1 + sigma^2) of 1e-160 has no digits in float64
    share = float(sigma[-1] / sigma[0])
    delta = 100 * EPS * (n + k) / share**power
    peak = float((gain * sigma).abs().max())
    condition = largest * float(sigma[0]) / max(peak, 1e-300)
    bound = (1 + abs(p or 2)) * delta * condition
    is_short = above_row_cut <= 1
    values = y @ (vh.mT * gain) @ vh
    values[is_short] = 0.0
    return values, bound, is_short


def check(x, name, p, branch) -> None:
    """Assert that a filter refuses a batch without a finite row, and is exact on others."""
    leaf = x.detach().requires_grad_()
    module = SpectralFilter(branch, name, p)
    if not x.isfinite().all(1).any():
        with pytest.raises(FloatingPointError):
            module(leaf)
        return
    out = module(leaf)
    assert out.dtype == x.dtype
    assert out.isfinite().all()
    if branch == "online":
        rng = torch.Generator().manual_seed(1)
        grad = torch.randn(x.shape, generator=rng)
        out.backward(grad.to(x.dtype))
        # float16 cannot hold gradients times 65504; a loss scaler checks for that.
        assert x.dtype == torch.float16 or leaf.grad.isfinite().all()
    expected = exact(x.detach(), name, p)
    if expected is None:
        return
    values, bound, is_short = expected
    assert not out[is_short].any()
    assert decompose(x.detach()).negligible_rows == is_short.sum()
    # Add the rounding to the dtype, which is coarser near the end of its range.
    info = torch.finfo(x.dtype)
    out = out.detach().double()
    smallest = info.tiny * info.eps
    largest = max(float(out.abs().max()), 1e-320)
    bound += 4 * info.eps
    bound += 2 * smallest * math.sqrt(x.numel()) / largest
    if bound < 1e-3 and values.any():
        # Directions of the whole matrices; the filter may multiply all rows by one constant.
        error = unit(out) - unit(values)
        assert error.norm() <= bound


@pytest.mark.drill
def test_hostile_batches_through_the_filters():
    draw = draws("filters")
    number = tries(120, 6000)
    faults = 0
    for _ in range(number):
        seed = draw.getrandbits(32)
        largest = draw.choice([4, 16, 40, 40, 200])
        x = batch(random.Random(seed), largest)
        name, p = draw.choice(FILTERS)
        branch = draw.choice(["online", "target"])
        try:
            check(x, name, p, branch)
        except AssertionError as error:
            faults += 1
            print(f"{seed} {describe(x)} {branch} {name} {p}: {error}")
    record("hostile batches through filters", number, number - faults)
