"""Spectral filters against a float64 SVD: values, gradients, bad batches, every dtype's range."""

import logging
import math

import mpmath
import pytest
import torch
from conftest import features, oracle
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from rdm_solo.filters import SpectralFilter, decompose, get, relative_cut
from rdm_solo.filters.batch import gather, spectrum_of

SHAPES = [(64, 512), (128, 64), (64, 64)]
KINDS = ["gaussian", "1/i", "1/i^2", "batchnorm"]
FILTERS = [
    ("pow", 1.0),
    ("pow", -0.5),
    ("pow", -1.0),
    ("log", None),
    ("log1p", None),
    ("log1p_sq", None),
]
BRANCHES = ["online", "target"]
# Measured over all cases below: at most 3.1e-7 for values and 3.9e-6 for gradients.
EXACT = 1e-5


def unit_rows(x: torch.Tensor) -> torch.Tensor:
    x = x.detach().double()
    x = x / x.abs().amax(1, keepdim=True).clamp_min(1e-320)
    return torch.nn.functional.normalize(x, dim=1, eps=1e-300)


def row_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest difference of two rows after both are scaled to length 1."""
    difference = unit_rows(actual) - unit_rows(expected)
    return float(difference.norm(dim=1).max())


def output_and_gradient(
    x: torch.Tensor, grad: torch.Tensor, name: str = "log1p", p: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    leaf = x.clone().requires_grad_()
    out = SpectralFilter("online", name, p)(leaf)
    out.backward(grad)
    return out.detach(), leaf.grad


@pytest.mark.parametrize(("name", "p"), FILTERS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_values_and_gradients_equal_the_oracle(n, k, kind, name, p):
    x = features(kind, n, k)
    grad = features("gaussian", n, k, seed=1)
    expected, w = oracle(x, get(name, p), relative_cut(torch.float32, n, k))
    out, leaf_grad = output_and_gradient(x, grad, name, p)
    assert row_error(out, expected) <= EXACT
    assert row_error(leaf_grad, grad.double() @ w) <= EXACT
    # The scale is that of Algorithm 2 as well.
    assert float((out.double() - expected).norm() / expected.norm()) <= EXACT
    target = SpectralFilter("target", name, p)(x.requires_grad_())
    assert not target.requires_grad
    assert row_error(target, expected) <= EXACT


@settings(max_examples=25, deadline=None)
@given(
    p=st.floats(-1.5, 2.0), seed=st.integers(0, 2**16), shape=st.sampled_from([(12, 40), (40, 12)])
)
def test_a_target_power_changes_the_spectrum_to_lam_to_the_1_plus_p(p, seed, shape):
    x = features("1/i", *shape, seed=seed)
    before = torch.linalg.svdvals(x.double())
    after = torch.linalg.svdvals(SpectralFilter("target", "pow", p)(x).double())
    expected = (before ** (1 + p)).sort(descending=True).values
    torch.testing.assert_close(after, expected, rtol=1e-4, atol=1e-6 * float(expected[0]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_dtype_is_returned_and_costs_only_its_own_rounding(dtype):
    x = features("gaussian", 64, 256).to(dtype)
    expected, w = oracle(x, get("pow", -0.5), relative_cut(dtype, 64, 256))
    exact = max(EXACT, 2 * torch.finfo(dtype).eps)
    if dtype == torch.float64:
        exact = 1e-11
    out, grad = output_and_gradient(x, torch.ones_like(x), "pow", -0.5)
    target = SpectralFilter("target", "pow", -0.5)(x)
    assert out.dtype == target.dtype == grad.dtype == dtype
    assert row_error(out, expected) <= exact
    assert row_error(target, expected) <= exact
    assert row_error(grad, torch.ones_like(x).double() @ w) <= exact


def count_products(branch: str, x: torch.Tensor) -> int:
    with FlopCounterMode(display=False) as counter:
        SpectralFilter(branch, "log1p")(x)
    return counter.get_total_flops()


def test_nothing_is_computed_for_a_gradient_that_is_not_needed():
    x = features("1/i", 24, 40)
    leaf = x.clone().requires_grad_()
    target = count_products("target", x)
    assert count_products("online", x) == target
    assert count_products("online", leaf) > target
    with torch.no_grad():
        assert count_products("online", leaf) == target


def three_batches() -> list[torch.Tensor]:
    return [
        features("1/i", 32, 8),
        features("gaussian", 32, 8) * 2,
        features("1/i", 32, 8) * 3,
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("branch", BRANCHES)
def test_a_running_correlation_defines_the_filter(branch, dtype):
    """W is that of C <- m C + (1 - m) X^T X / n, with sigma = sqrt(n lambda)."""
    spectral = SpectralFilter(branch, "pow", p=-0.5, momentum=0.9)
    C = None
    for x in three_batches():
        out = spectral(x.to(dtype))
        x = x.double()
        batch_C = x.mT @ x / len(x)
        C = batch_C if C is None else 0.9 * C + 0.1 * batch_C
        lam, vectors = torch.linalg.eigh(C)
        expected = x @ (vectors * (len(x) * lam).pow(-0.25)) @ vectors.mT
        assert row_error(out, expected) < EXACT


def test_a_running_correlation_excludes_broken_rows_and_stays_float64():
    spectral = SpectralFilter("online", "pow", p=1.0, momentum=0.9)
    x = features("1/i", 32, 8)
    spectral(x)
    spectral.float()  # casts the buffer, as `.float()` on a whole model does
    broken = x.clone()
    broken[:16] = torch.nan
    before = spectral.running.double()
    spectral(broken)
    batch_C = x[16:].double().mT @ x[16:].double() / 16
    torch.testing.assert_close(spectral.running, 0.9 * before + 0.1 * batch_C)
    with torch.inference_mode():
        spectral(x)
    spectral(x.requires_grad_()).sum().backward()


def filtered_with_running_correlation(rank: int, size: int) -> torch.Tensor:
    """Return this process's rows of the three batches, ``(3, N, k)``."""
    spectral = SpectralFilter("online", "pow", p=1.0, momentum=0.9)
    return torch.stack([spectral(x.chunk(size)[rank]) for x in three_batches()])


@pytest.mark.process
def test_a_running_correlation_is_that_of_all_processes(worlds):
    expected = filtered_with_running_correlation(0, 1)
    parts = worlds(2).run(filtered_with_running_correlation)
    torch.testing.assert_close(torch.cat(parts, 1), expected)


def test_eval_returns_the_input_and_decomposes_nothing(monkeypatch):
    module = SpectralFilter("target", "pow", p=-0.5).eval()
    monkeypatch.setattr(torch.linalg, "eigh", None)
    monkeypatch.setattr(torch.linalg, "svd", None)
    x = torch.randn(8, 4)
    assert module(x) is x


@pytest.mark.parametrize("x", [torch.ones(3), torch.ones(0, 4), torch.ones(4, 4).long()])
def test_other_shapes_and_integers_are_refused(x):
    with pytest.raises(ValueError, match="shape"):
        SpectralFilter("online", "log1p")(x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("n", [32, 192])
def test_the_cut_is_above_what_a_real_head_leaves_in_its_null_direction(n, dtype):
    """The head is a linear layer with batch norm, so no oracle shares the cut."""
    torch.manual_seed(0)
    k = 512
    head = torch.nn.Sequential(torch.nn.Linear(128, k), torch.nn.BatchNorm1d(k, affine=False))
    x = head(features("1/i", n, 128).relu()).detach().to(dtype)
    sigma = torch.linalg.svdvals(x.double())
    rank = min(n - 1, 129)  # the linear layer's rank and the constant
    assert sigma[rank:].max() < relative_cut(dtype, n, k) * sigma[0]
    out = torch.linalg.svdvals(SpectralFilter("target", "pow", p=-1.0)(x).double())
    assert int((out > 0.5).sum()) <= rank


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "k"), [(16, 8), (200, 110), (256, 128), (512, 512)])
def test_equal_rows_have_one_direction(n, k, dtype):
    x = features("gaussian", 1, k).to(dtype).expand(n, k).contiguous()
    for running in (False, True):
        assert int(spectrum_of(*gather(x, running)).directions) == 1


def test_a_row_with_nan_gets_nothing_and_the_others_are_filtered_without_it():
    x = features("1/i", 32, 96)
    broken = x.clone()
    broken[5, 3] = math.nan
    is_other = torch.arange(32) != 5
    out, grad = output_and_gradient(broken, torch.ones_like(x))
    expected, w = oracle(x[is_other], get("log1p"), relative_cut(torch.float32, 32, 96))
    assert row_error(out[is_other], expected) <= EXACT
    assert row_error(grad[is_other], torch.ones(31, 96).double() @ w) <= EXACT
    assert not out[5].any()
    assert not grad[5].any()


@pytest.mark.parametrize("branch", BRANCHES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_input_is_left_as_it_is(branch, dtype, momentum):
    x = features("gaussian", 8, 4).to(dtype)
    x[2, 1] = math.nan
    x[3] = 0.0
    before = x.clone()
    SpectralFilter(branch, "pow", p=-0.5, momentum=momentum)(x)
    torch.testing.assert_close(x, before, rtol=0, atol=0, equal_nan=True)


def test_a_batch_of_only_nan_is_an_error():
    with pytest.raises(FloatingPointError, match="4 rows"):
        SpectralFilter("target", "pow", p=-0.5)(torch.full((4, 8), math.nan))


def hostile_batch(kind: str) -> torch.Tensor:
    x = features("batchnorm", 64, 256)
    if kind == "collapsed":
        x = torch.ones_like(x)
    elif kind == "duplicate":
        x[0] = x[1]
        x = x - x.mean(0)
    elif kind == "NaN":
        x[3] = math.nan
    elif kind == "zeros":
        x[:2] = 0
    return x


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("batch norm", None),  # always leaves one empty direction
        ("collapsed", "1 of 64 directions"),
        ("duplicate", "62 of 64 directions"),
        ("NaN", "1 of 64 rows"),
        ("zeros", "2 of 64 rows"),
    ],
)
def test_what_is_mapped_to_zero_is_logged_once(kind, message, caplog):
    module = SpectralFilter("target", "pow", p=-0.5)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            module(hostile_batch(kind))
    if message is None:
        assert not caplog.records
    else:
        assert caplog.text.count(message) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "k"), [(48, 160), (160, 48)])
def test_rows_keep_their_direction_down_to_the_bound(n, k, dtype):
    """In half precision short rows are rounded by the same share as long rows."""
    cut = row_cut(dtype, n, k)
    lengths = torch.logspace(0, math.log10(2 * cut), n)
    lengths[::2] = 1
    x = unit_rows(features("1/i", n, k)) * lengths[:, None]
    x = x.to(dtype)
    _, w = oracle(x, get("log1p"), relative_cut(dtype, n, k))
    out, grad = output_and_gradient(x, torch.ones_like(x))
    exact = max(EXACT, 2 * torch.finfo(dtype).eps)
    # The oracle's u_i have rounding errors of eps64, so its rows are computed with W.
    assert row_error(out, x.double() @ w) <= exact
    assert row_error(grad, torch.ones_like(x).double() @ w) <= exact


def row_cut(dtype: torch.dtype, n: int, k: int) -> float:
    if dtype != torch.float64:
        dtype = torch.float32
    return relative_cut(dtype, n, k)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(("share", "dropped"), [(0.9, 1), (1.1, 0)])
def test_rows_are_dropped_below_the_bound(dtype, share, dropped):
    x = features("gaussian", 48, 160).double()
    root_mean_square = x.norm(dim=1).square().mean().sqrt()
    x[4] *= share * row_cut(dtype, 48, 160) * root_mean_square / x[4].norm()
    assert int(decompose(x.to(dtype)).negligible_rows) == dropped


def allow_fewer_digits(setting: str) -> None:
    if setting == "autocast":
        torch.set_autocast_enabled("cpu", True)
    elif setting == "high":
        torch.set_float32_matmul_precision("high")
    else:
        matmul = getattr(torch.backends.mkldnn, "matmul", None)
        if not hasattr(matmul, "fp32_precision"):
            pytest.skip("this torch has no precision for mkldnn")
        matmul.fp32_precision = "bf16"


@pytest.fixture
def _restored_precision():
    yield
    torch.set_float32_matmul_precision("highest")
    torch.set_autocast_enabled("cpu", False)


@pytest.mark.usefixtures("_restored_precision")
@pytest.mark.parametrize("setting", ["high", "mkldnn bf16", "autocast"])
@pytest.mark.parametrize(("n", "k"), [(64, 256), (256, 64)])
def test_products_are_exact_whatever_torch_allows(n, k, setting):
    x = features("1/i", n, k)
    grad = features("gaussian", n, k, seed=1)
    _, w = oracle(x, get("log1p"), relative_cut(torch.float32, n, k))
    leaf = x.clone().requires_grad_()
    out = SpectralFilter("online", "log1p")(leaf)
    allow_fewer_digits(setting)
    out.backward(grad)
    out, second_grad = output_and_gradient(x, grad)
    torch.set_autocast_enabled("cpu", False)
    assert out.dtype == torch.float32
    assert row_error(out, x.double() @ w) <= EXACT
    for actual in (leaf.grad, second_grad):
        assert row_error(actual, grad.double() @ w) <= EXACT


def with_short_rows(seed: int) -> torch.Tensor:
    """Return float32 rows, the first of which are nearly as short as the cut."""
    draw = torch.Generator().manual_seed(seed)
    n, k = [(12, 8), (8, 12), (64, 32), (11, 11)][seed % 4]
    x = torch.randn(n, k, generator=draw, dtype=torch.float64)
    short = 1 + seed % 3
    decades = 2.5 * torch.rand(short, 1, generator=draw)
    x[:short] *= relative_cut(torch.float32, n, k) * 10**decades
    return x.float()


@pytest.mark.parametrize("p", [-0.5, -1.0, -2.0, -3.0])
def test_the_error_near_the_cut_is_at_most_the_gram_matrix_s(p):
    """The largest error found was 7.3 eps64 condition^2; the bound allows 16."""
    tested = 0
    for seed in range(100):
        x = with_short_rows(seed)
        spectrum = decompose(x)
        if int(spectrum.directions) < min(x.shape) or int(spectrum.negligible_rows):
            continue  # a direction or a row counts as zero
        tested += 1
        u, sigma, vh = torch.linalg.svd(x.double(), full_matrices=False)
        condition = float(sigma[0] / sigma[-1])
        bound = 3.1e-7 + 16 * torch.finfo(torch.float64).eps * condition ** max(2, -p)
        expected = (u * sigma ** (1 + p)) @ vh
        assert row_error(SpectralFilter("target", "pow", p)(x), expected) <= bound
    assert tested > 40


@pytest.mark.parametrize(
    ("n", "k", "length", "p", "bound"),
    [
        # Rows times V g V^T have errors of 4.7e-5 and 2 (an antiparallel row).
        (11, 11, 1e-10, -1.0, 1e-14),
        (11, 11, 1e-10, -2.0, 1e-5),
        # U sigma g V^T has errors of 2e-4 to 6e-4.
        (12, 4, 1e-12, -1.0, 1e-14),
        (12, 4, 1e-12, 0.5, 1e-14),
        # The row space is only known to 1e-16 / 1e-10; U sigma g V^T errs by 8e-6.
        (4, 12, 1e-10, 0.5, 1e-9),
    ],
)
def test_float64_keeps_the_direction_of_a_short_row(n, k, length, p, bound):
    x = torch.randn(n, k, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    x[0] *= length
    with mpmath.workdps(60):
        u, sigma, vh = mpmath.svd_r(mpmath.matrix(x.tolist()))
        filtered = u * mpmath.diag([s ** (1 + p) for s in sigma]) * vh
    expected = torch.tensor([float(value) for value in filtered], dtype=torch.float64)
    for branch in BRANCHES:
        out = SpectralFilter(branch, "pow", p)(x)
        assert row_error(out, expected.reshape(n, k)) < bound
