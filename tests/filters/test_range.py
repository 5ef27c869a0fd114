"""Numbers near the ends of each dtype, rows of any length, fewer digits in products, odd gains."""

from __future__ import annotations

import logging
import math

import pytest
import torch
from conftest import features, oracle

from rdm_solo.filters import (
    SpectralFilter,
    decompose,
    filter_gradient,
    filter_online,
    gains,
    get,
    relative_cut,
)

EXACT = 1e-5  # as in test_filters.py


def row_error(got: torch.Tensor, want: torch.Tensor) -> float:
    def unit(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().double()
        x = x / x.abs().amax(1, keepdim=True).clamp_min(1e-320)  # their squares may leave the range
        return torch.nn.functional.normalize(x, dim=1, eps=1e-300)

    return float((unit(got) - unit(want)).norm(dim=1).max())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("n", [4096, 65536])
def test_no_row_is_lost_however_many_there_are(n, dtype, caplog):
    """Rows are not measured by the largest singular value, which grows with their number."""
    x = torch.randn(n, 24, generator=torch.Generator().manual_seed(0))
    x = (x / torch.arange(1, 25)).to(dtype)
    module = SpectralFilter("target", "pow", -0.5)
    with caplog.at_level(logging.WARNING):
        assert (module(x) != 0).any(1).all()
    assert module.dropped_rows == 0
    assert not caplog.records


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "k"), [(48, 160), (160, 48)])
def test_rows_of_any_length_keep_their_direction(n, k, dtype):
    """Down to the bound: in half precision they are rounded to the same share as others."""
    x = features("1/i", n, k).double()
    cut = relative_cut(torch.float64 if dtype == torch.float64 else torch.float32, n, k)
    lengths = torch.where(torch.arange(n) % 2 == 0, 1.0, torch.logspace(0, math.log10(2 * cut), n))
    x = (torch.nn.functional.normalize(x, dim=1) * lengths[:, None]).to(dtype)
    want, w = oracle(x, get("log1p"), relative_cut(dtype, n, k))
    leaf = x.clone().requires_grad_()
    out = SpectralFilter("online", "log1p")(leaf)
    rounding = torch.finfo(dtype).eps * 2
    # The oracle's own rows u_i have rounding of eps64 beside the largest, so rows go through W.
    assert row_error(out, x.double() @ w) <= max(EXACT, rounding)
    out.backward(torch.ones_like(out))
    assert row_error(leaf.grad, torch.ones_like(x).double() @ w) <= max(EXACT, rounding)
    del want


def test_rows_that_are_dropped_are_counted_and_said_once(caplog):
    x = features("1/i", 40, 96)
    size = x.norm(dim=1).square().mean().sqrt() * relative_cut(torch.float32, 40, 96)
    x[3], x[7], x[11, 5] = 0.0, x[7] / x[7].norm() * size * 0.9, math.nan
    x[20] *= size * 1.1 / x[20].norm()
    for shape in (x, x.repeat(3, 1)):
        module = SpectralFilter("online", "log1p")
        assert module.dropped_rows == 0
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                out = module(shape.clone().requires_grad_())
        copies = len(shape) // 40
        assert module.dropped_rows == 3 * copies
        assert (out == 0).all(1).nonzero().flatten()[:3].tolist() == [3, 7, 11]
        assert int((out == 0).all(1).sum()) == 3 * copies
        said = [r.message for r in caplog.records]
        assert len([text for text in said if "zero to rounding beside the others" in text]) == 1
        assert f"{2 * copies} of {40 * copies} rows that reached the online filter" in said[1]
        assert f"{copies} of {40 * copies} rows reached the online filter with NaN" in said[0]
    assert decompose(x).negligible_rows == 3
    assert decompose(x).broken_rows == 1


@pytest.fixture
def _products_as_they_were():
    yield
    torch.set_float32_matmul_precision("highest")


def _by_backend(name, value):
    backend = getattr(torch.backends, name)
    if not hasattr(getattr(backend, "matmul", None), "fp32_precision"):
        pytest.skip(f"this torch has no precision of {name}'s own")
    backend.matmul.fp32_precision = value


FEWER_DIGITS = {
    "high": lambda: torch.set_float32_matmul_precision("high"),
    "medium": lambda: torch.set_float32_matmul_precision("medium"),
    "mkldnn bf16": lambda: _by_backend("mkldnn", "bf16"),
    "cuda tf32": lambda: _by_backend("cuda", "tf32"),
}


@pytest.mark.usefixtures("_products_as_they_were")
@pytest.mark.parametrize("fewer", FEWER_DIGITS)
@pytest.mark.parametrize(("n", "k"), [(64, 256), (256, 64)])
def test_products_are_exact_whatever_torch_is_told(n, k, fewer):
    x = features("1/i", n, k)
    _, w = oracle(x, get("log1p"), relative_cut(torch.float32, n, k))
    grad = torch.randn(n, k, generator=torch.Generator().manual_seed(1))
    plain = x.clone().requires_grad_()
    out = SpectralFilter("online", "log1p")(plain)
    FEWER_DIGITS[fewer]()
    out.backward(grad)  # told between forward and backward
    leaf = x.clone().requires_grad_()
    out = SpectralFilter("online", "log1p")(leaf)
    out.backward(grad)
    assert row_error(out, x.double() @ w) <= EXACT
    for found in (plain.grad, leaf.grad):
        assert row_error(found, grad.double() @ w) <= EXACT
    _, operator = filter_online(decompose(x), gains(decompose(x), torch.log1p))
    with torch.autocast("cpu", torch.bfloat16):
        assert row_error(filter_gradient(grad, operator), grad.double() @ w) <= EXACT


@pytest.mark.parametrize("branch", ["online", "target"])
@pytest.mark.parametrize(("name", "p"), [("pow", -1.0), ("pow", 10), ("pow", -10), ("log1p", None)])
@pytest.mark.parametrize("shape", [(24, 40), (40, 24)])
@pytest.mark.parametrize(
    ("dtype", "scale"),
    [
        (torch.float64, 1e200),
        (torch.float64, 1e-200),
        (torch.float64, 1e280),
        (torch.float64, 1e-280),
        (torch.float32, 1e30),
        (torch.float32, 1e-30),
        (torch.float32, 1e34),
        (torch.float32, 1e-36),
        (torch.bfloat16, 1e30),
        (torch.bfloat16, 1e-30),
        (torch.float16, 1e4),
        (torch.float16, 1e-4),
    ],
)
def test_scales_near_the_ends_of_a_dtype(dtype, scale, shape, name, p, branch):
    """Against the SVD of the same rows in the middle of float64; powers are free of the scale."""
    x = (features("1/i", *shape).double() / 4 * scale).to(dtype)
    assert x.isfinite().all()
    middle = x.double() / scale
    cut = relative_cut(dtype, *shape)
    if name == "pow":
        gain = get(name, p)
    else:  # log(1 + sigma) of the large and of the small

        def gain(sigma):
            return (sigma * scale).log1p() / (scale if scale < 1 else 1)

    want, w = oracle(middle, gain, cut)
    leaf = x.clone().requires_grad_()
    out = SpectralFilter(branch, name, p)(leaf)
    half = dtype in (torch.float16, torch.bfloat16)
    # sigma^10 and sigma^-9 differ by 1e30 and more within a batch: rows that hold next to nothing
    # of the largest are rounded away in half precision and at the ends of float32.
    largest = want.abs().amax(1) > 1e-3 * want.abs().max()
    exact = 4 * torch.finfo(dtype).eps if half else EXACT
    assert row_error(out[largest], want[largest]) <= exact
    assert out.isfinite().all()
    if branch == "online":
        grad = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
        out.backward(grad)
        if dtype != torch.float16:  # whose gradients overflow where W is large: a scaler's business
            assert leaf.grad.isfinite().all()
            back = grad.double() @ w
            largest = back.abs().amax(1) > 1e-3 * back.abs().max()
            assert row_error(leaf.grad[largest], back[largest]) <= exact


@pytest.mark.parametrize("shape", [(24, 40), (40, 24)])
@pytest.mark.parametrize("value", [1e-45, 1e-40, 3e38, 5e-324, 1e-300, 1.7e308])
def test_what_lies_beyond_is_finite_and_documented(value, shape):
    """float64 beyond 2^960 is infinite and below 2^-960 zero; float32 has no such numbers."""
    x = features("gaussian", *shape).sign().double() * value
    if value in (1e-45, 1e-40, 3e38):
        x = x.float()
    leaf = x.clone().requires_grad_()
    module = SpectralFilter("online", "pow", 1.0)
    if value == 1.7e308:
        with pytest.raises(FloatingPointError, match="NaN or infinity"):
            module(leaf)
        return
    out = module(leaf)
    assert out.isfinite().all()
    out.sum().backward()
    assert leaf.grad.isfinite().all()
    assert out.any(1).all() == (value not in (5e-324, 1e-300))


def test_a_few_huge_numbers_of_float64_lose_their_rows_alone():
    x = features("1/i", 24, 40).double()
    x[5, 3] = 1e300
    out = SpectralFilter("target", "pow", -0.5)(x)
    others = torch.arange(24) != 5
    want, _ = oracle(x[others], get("pow", -0.5), relative_cut(torch.float64, 24, 40))
    assert not out[5].any()
    assert row_error(out[others], want) <= 1e-11


@pytest.mark.parametrize("scale", [1e-300, 1e-40, 1.0, 1e40, 1e300])
@pytest.mark.parametrize("p", [-10, -1, 0.5, 10])
def test_powers_beyond_the_range_keep_their_ratios(p, scale):
    sigma = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    found = get("pow", p)(sigma * scale)
    assert found.isfinite().all()
    torch.testing.assert_close(found / found[0], sigma.pow(p), rtol=1e-12, atol=0)
    if abs(p * math.log(scale)) < 500:
        torch.testing.assert_close(found, (sigma * scale).pow(p), rtol=0, atol=0)
    assert get("pow", p)(sigma[:0]).shape == (0,)


SPECTRUM = torch.diag(torch.tensor([4.0, 2.0, 1.0]))


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda sigma: sigma[:, None], r"got shape \(3, 1\) for 3 of them"),
        (lambda sigma: sigma.sum(), r"got shape \(\) for 3 of them"),
        (lambda sigma: sigma.tolist(), "got list for 3 of them"),
        (lambda sigma: sigma + 0j, "real and .* got torch.complex128"),
        (lambda sigma: sigma.half(), "digits of float32 or float64, got torch.float16"),
        (lambda sigma: sigma.bfloat16(), "digits of float32 or float64, got torch.bfloat16"),
        (lambda sigma: sigma / 0, "returned NaN or infinity"),
        (lambda sigma: sigma * math.nan, "returned NaN or infinity"),
    ],
)
def test_gains_that_are_not_one_real_number_each_are_refused(function, says):
    with pytest.raises(ValueError, match=says):
        gains(decompose(SPECTRUM), function)
    with pytest.raises(ValueError, match=says.replace("3", "[38]")):
        SpectralFilter("target", function)(SPECTRUM)


@pytest.mark.parametrize(
    ("function", "want"),
    [
        (lambda sigma: sigma > 1.5, [0, 1, 1]),
        (lambda sigma: sigma.long(), [1, 2, 4]),
        (lambda sigma: sigma.float(), [1, 2, 4]),
        (lambda sigma: sigma.square_(), [1, 4, 16]),  # changes what it got
    ],
)
def test_gains_that_are_exact_are_taken(function, want):
    spectrum = decompose(SPECTRUM)
    assert gains(spectrum, function).tolist() == want
    assert spectrum.sigma.tolist() == [1, 2, 4]
    out = SpectralFilter("target", function)(SPECTRUM)
    assert out.diagonal().flip(0).tolist() == [a * b for a, b in zip(want, [1, 2, 4])]


def test_no_gradient_reaches_what_a_gain_was_computed_from():
    weight = torch.tensor(2.0, requires_grad=True)
    assert not gains(decompose(SPECTRUM), lambda sigma: sigma * weight).requires_grad
    leaf = SPECTRUM.clone().requires_grad_()
    SpectralFilter("online", lambda sigma: sigma * weight)(leaf).sum().backward()
    assert weight.grad is None


def test_the_log_of_a_square_that_leaves_the_range():
    sigma = torch.tensor([1e-3, 1.0, 9.99e8, 1e9, 1e10, 1e200], dtype=torch.float64)
    want = [2 * math.log(value) for value in sigma[2:].tolist()]
    found = get("log1p_sq")(sigma)
    assert found[:2].tolist() == pytest.approx([math.log1p(1e-6), math.log(2)], rel=1e-15)
    assert found[2:].tolist() == pytest.approx(want, rel=1e-15)
