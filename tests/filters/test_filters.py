"""Spectral filters against a float64 SVD: values, gradients, bad batches, every dtype's range."""

import math

import mpmath
import pytest
import torch
from conftest import features, oracle
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import batch_norm
from torch.utils.flop_counter import FlopCounterMode

from rdm_solo.filters import SpectralFilter, decompose, get, relative_cut
from rdm_solo.filters.batch import gather, spectra

BRANCHES = ["online", "target"]
FULL_PRECISION = [torch.float32, torch.float64]
# Measured over all cases below: at most 3.1e-7 for values and 3.9e-6 for gradients.
EXACT = 1e-5


def row_error(actual, expected):
    """Return the largest relative error of a row."""
    difference = actual.detach().double() - expected
    errors = difference.norm(dim=1) / expected.norm(dim=1)
    return errors.max()


def check(x, name, p=None, exact=EXACT, rows=...):
    """Compare both branches and the gradient with the oracle, in those rows, and return them.

    The oracle's rows are computed with W: its singular vectors are inexact for short rows.
    """
    cut = relative_cut(x.dtype, *x[rows].shape)
    _, w = oracle(x[rows], get(name, p), cut)
    grad = features("gaussian", *x.shape, seed=1).to(x.dtype)
    leaf = x.clone().requires_grad_()
    online = SpectralFilter("online", name, p)(leaf)
    online.backward(grad)
    target = SpectralFilter("target", name, p)(leaf)
    assert not target.requires_grad
    pairs = [
        (online, x),
        (target, x),
        (leaf.grad, grad),
    ]
    for actual, source in pairs:
        expected = source[rows].double() @ w
        assert actual.dtype == x.dtype
        assert row_error(actual[rows], expected) <= exact
    return online, leaf.grad


@pytest.mark.parametrize(
    ("name", "p"),
    [
        ("pow", 1.0),
        ("pow", -0.5),
        ("pow", -1.0),
        ("log", None),
        ("log1p", None),
        ("log1p_sq", None),
    ],
)
@pytest.mark.parametrize("kind", ["gaussian", "1/i", "1/i^2", "batchnorm"])
@pytest.mark.parametrize(
    ("n", "k"),
    [
        (64, 512),
        (128, 64),
        (64, 64),
    ],
)
def test_values_and_gradients_equal_the_oracle(n, k, kind, name, p):
    check(features(kind, n, k), name, p)


@pytest.mark.parametrize(
    ("dtype", "exact"),
    [
        (torch.float16, 2e-3),
        (torch.bfloat16, 1.6e-2),
        (torch.float64, 1e-11),
    ],
)
def test_another_dtype_is_returned_and_costs_only_its_own_rounding(dtype, exact):
    x = features("gaussian", 64, 256)
    check(x.to(dtype), "pow", -0.5, exact)


@settings(max_examples=25, deadline=None)
@given(
    p=st.floats(-1.5, 2.0),
    seed=st.integers(0, 2**16),
    shape=st.sampled_from([(12, 40), (40, 12)]),
)
def test_a_target_power_changes_the_spectrum_to_lam_to_the_1_plus_p(p, seed, shape):
    x = features("1/i", *shape, seed=seed)
    before = torch.linalg.svdvals(x.double())
    out = SpectralFilter("target", "pow", p)(x)
    after = torch.linalg.svdvals(out.double())
    expected = before ** (1 + p)
    expected = expected.sort(descending=True).values
    atol = 1e-6 * float(expected[0])
    torch.testing.assert_close(after, expected, rtol=1e-4, atol=atol)


def count_products(branch, x):
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


def three_batches():
    return [
        features("1/i", 32, 8),
        features("gaussian", 32, 8) * 2,
        features("1/i", 32, 8) * 3,
    ]


def filtered_with_running_correlation(rank, size, branch="online", dtype=torch.float32):
    """Return this process's rows of the three batches, ``(3, N, k)``."""
    spectral = SpectralFilter(branch, "pow", p=-0.5, momentum=0.9)
    rows = []
    for x in three_batches():
        local = x.chunk(size)[rank]
        rows.append(spectral(local.to(dtype)))
    return torch.stack(rows)


@pytest.mark.parametrize("dtype", FULL_PRECISION)
@pytest.mark.parametrize("branch", BRANCHES)
def test_a_running_correlation_defines_the_filter(branch, dtype):
    """W is that of C <- m C + (1 - m) X^T X / n, with sigma = sqrt(n lambda)."""
    actual = filtered_with_running_correlation(0, 1, branch, dtype)
    C = None
    for x, out in zip(three_batches(), actual):
        x = x.double()
        batch_C = x.mT @ x / len(x)
        C = batch_C if C is None else 0.9 * C + 0.1 * batch_C
        lam, vectors = torch.linalg.eigh(C)
        gain = (len(x) * lam).pow(-0.25)
        W = (vectors * gain) @ vectors.mT
        assert row_error(out, x @ W) < EXACT


@pytest.mark.process
def test_a_running_correlation_is_that_of_all_processes(worlds):
    expected = filtered_with_running_correlation(0, 1)
    parts = worlds(2).run(filtered_with_running_correlation)
    torch.testing.assert_close(torch.cat(parts, 1), expected)


def test_a_running_correlation_excludes_broken_rows_and_stays_float64():
    spectral = SpectralFilter("online", "pow", p=1.0, momentum=0.9)
    x = features("1/i", 32, 8)
    spectral(x)
    spectral.float()  # casts the buffer, as `.float()` on a whole model does
    before = spectral.running.double()
    finite = x[16:].double()
    broken = x.clone()
    broken[:16] = torch.nan
    spectral(broken)
    batch_C = finite.mT @ finite / 16
    torch.testing.assert_close(spectral.running, 0.9 * before + 0.1 * batch_C)
    with torch.inference_mode():
        spectral(x)
    spectral(x.requires_grad_()).sum().backward()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("n", [32, 192])
def test_the_cut_is_above_what_a_real_head_leaves_in_its_null_direction(n, dtype):
    """The head is a linear layer with batch norm, so no oracle shares the cut."""
    torch.manual_seed(0)
    k = 512
    linear = torch.nn.Linear(128, k)
    hidden = features("1/i", n, 128).relu()
    x = batch_norm(linear(hidden), None, None, training=True)
    x = x.detach().to(dtype)
    sigma = torch.linalg.svdvals(x.double())
    rank = min(n - 1, 129)  # the linear layer's rank and the constant
    cut = relative_cut(dtype, n, k) * sigma[0]
    assert sigma[rank:].max() < cut


@pytest.mark.parametrize("dtype", FULL_PRECISION)
@pytest.mark.parametrize(
    ("n", "k"),
    [
        (16, 8),
        (200, 110),
        (256, 128),
        (512, 512),
    ],
)
def test_equal_rows_have_one_direction(n, k, dtype):
    row = features("gaussian", 1, k).to(dtype)
    x = row.repeat(n, 1)
    for running in (False, True):
        spectrum = spectra([gather(x, running)])[0]
        assert int(spectrum.directions) == 1


def test_a_row_with_nan_gets_nothing_and_the_others_are_filtered_without_it():
    x = features("1/i", 32, 96)
    x[5, 3] = math.nan
    is_finite = torch.arange(32) != 5
    out, grad = check(x, "log1p", rows=is_finite)
    assert not out[5].any()
    assert not grad[5].any()


@pytest.mark.parametrize("dtype", FULL_PRECISION)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_input_is_left_as_it_is(dtype, momentum):
    x = features("gaussian", 8, 4).to(dtype)
    x[2, 1] = math.nan
    x[3] = 0.0
    before = x.clone()
    SpectralFilter("online", "pow", p=-0.5, momentum=momentum)(x)
    torch.testing.assert_close(x, before, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("rows", "value", "message"),
    [
        (slice(0), 0.0, None),  # batch norm always leaves one empty direction
        (slice(4), 1.0, "3 of 64 directions"),
        (slice(64), 1.0, "63 of 64 directions"),
        (slice(1), math.nan, "1 of 64 rows"),
        (slice(2), 0.0, "2 of 64 rows"),
    ],
)
def test_what_is_mapped_to_zero_is_logged_once(rows, value, message, caplog):
    x = features("batchnorm", 64, 256)
    x[rows] = value
    module = SpectralFilter("target", "pow", p=-0.5)
    for _ in range(3):
        module(x)
    if message is None:
        assert not caplog.records
    else:
        assert caplog.text.count(message) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, *FULL_PRECISION])
@pytest.mark.parametrize(("share", "dropped"), [(0.9, 1), (1.1, 0)])
def test_rows_are_dropped_below_the_bound(dtype, share, dropped):
    x = features("gaussian", 48, 160).double()
    lengths = x.norm(dim=1)
    root_mean_square = lengths.square().mean().sqrt()
    # Half precision rounds short and long rows by the same share, so it has float32's bound.
    digits = torch.float64 if dtype == torch.float64 else torch.float32
    bound = relative_cut(digits, 48, 160) * root_mean_square
    x[4] *= share * bound / lengths[4]
    assert int(decompose(x.to(dtype)).negligible_rows) == dropped


@pytest.fixture(params=["medium", "autocast"])
def _fewer_digits(request):
    """Allow torch to compute float32 products with fewer digits."""
    if request.param == "autocast":
        torch.set_autocast_enabled("cpu", True)
    else:
        torch.set_float32_matmul_precision(request.param)
    yield
    torch.set_float32_matmul_precision("highest")
    torch.set_autocast_enabled("cpu", False)


@pytest.mark.usefixtures("_fewer_digits")
@pytest.mark.parametrize(("n", "k"), [(64, 256), (256, 64)])
def test_products_are_exact_whatever_torch_allows(n, k):
    check(features("1/i", n, k), "log1p")


def with_short_rows(n, k, seed):
    """Return float32 rows, the first of which are nearly as short as the cut."""
    x = features("gaussian", n, k, seed)
    rng = torch.Generator().manual_seed(seed)
    decades = 2.5 * torch.rand(2, 1, generator=rng)
    cut = relative_cut(torch.float32, n, k)
    x[:2] *= cut * 10**decades
    return x


@pytest.mark.parametrize("p", [-0.5, -1.0, -2.0, -3.0])
@pytest.mark.parametrize(
    ("n", "k"),
    [
        (12, 8),
        (8, 12),
        (64, 32),
        (11, 11),
    ],
)
def test_the_error_near_the_cut_is_at_most_the_gram_matrix_s(n, k, p):
    """The largest error found was 7.3 eps64 condition^2; the bound allows 16."""
    eps = torch.finfo(torch.float64).eps
    tested = 0
    for seed in range(25):
        x = with_short_rows(n, k, seed)
        spectrum = decompose(x)
        has_noise = spectrum.directions < min(n, k)
        if has_noise or spectrum.negligible_rows:
            continue  # a direction or a row counts as zero
        tested += 1
        u, sigma, vh = torch.linalg.svd(x.double(), full_matrices=False)
        condition = float(sigma[0] / sigma[-1])
        bound = 3.1e-7 + 16 * eps * condition ** max(2, -p)
        filtered = sigma ** (1 + p)
        expected = (u * filtered) @ vh
        branch = BRANCHES[seed % 2]
        out = SpectralFilter(branch, "pow", p)(x.requires_grad_())
        assert row_error(out, expected) <= bound
    assert tested > 5


@pytest.mark.parametrize(
    ("n", "k", "length", "p", "bound"),
    [
        # Rows times V g V^T have errors of 4.7e-5 and 2 (an antiparallel row).
        (11, 11, 1e-10, -1.0, 1e-14),
        (11, 11, 1e-10, -2.0, 1e-4),
        # U sigma g V^T has errors of 2e-4 to 6e-4.
        (12, 4, 1e-12, -1.0, 1e-14),
        (12, 4, 1e-12, 0.5, 1e-14),
        # The row space is only known to 1e-16 / 1e-10; U sigma g V^T errs by 8e-6.
        (4, 12, 1e-10, 0.5, 1e-9),
    ],
)
def test_float64_keeps_the_direction_of_a_short_row(n, k, length, p, bound):
    rng = torch.Generator().manual_seed(3)
    x = torch.randn(n, k, generator=rng, dtype=torch.float64)
    x[0] *= length
    with mpmath.workdps(60):
        u, sigma, vh = mpmath.svd_r(mpmath.matrix(x.tolist()))
        gained = mpmath.diag([s ** (1 + p) for s in sigma])
        filtered = u * gained * vh
    expected = torch.tensor(filtered.tolist(), dtype=torch.float64)
    out = SpectralFilter("online", "pow", p)(x.requires_grad_())
    assert row_error(out, expected) < bound
