"""Running correlations, cuts of rounding noise, warnings, and errors near the cuts."""

import math

import mpmath
import pytest
import torch
from conftest import features
from hypothesis import given, settings
from hypothesis import strategies as st
from support.hostile import BRANCHES, batch_of
from torch.nn.functional import batch_norm
from torch.utils.flop_counter import FlopCounterMode

from rdm_solo.filters import SpectralFilter, decompose, relative_cut
from rdm_solo.filters.batch import gather, spectra

FULL_PRECISION = [torch.float32, torch.float64]


def row_error(actual, expected):
    """Return the largest relative error of a row."""
    difference = actual.detach().double() - expected
    errors = difference.norm(dim=1) / expected.norm(dim=1)
    return errors.max()


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
        assert row_error(out, x @ W) < 1e-5


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
@pytest.mark.parametrize("shape", [(200, 110), (512, 512)])
@pytest.mark.parametrize("running", [False, True])
def test_equal_rows_have_one_direction(shape, dtype, running):
    x = batch_of("equal rows", *shape).to(dtype)
    (spectrum,) = spectra([gather(x, running)])
    assert spectrum.directions.item() == 1


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
    x = x / x.norm(dim=1, keepdim=True)
    # Half precision rounds short and long rows by the same share, so it has float32's bound.
    digits = torch.float64 if dtype == torch.float64 else torch.float32
    x[4] *= share * relative_cut(digits, 48, 160)
    assert decompose(x.to(dtype)).negligible_rows.item() == dropped


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
    ("n", "k", "length", "p", "weakest"),
    [
        # Rows times V g V^T have errors of 4.7e-5 and 2 (an antiparallel row).
        (11, 11, 1e-10, -1.0, -2),
        (11, 11, 1e-10, -2.0, -1),
        # U sigma g V^T has errors of 2e-4 to 6e-4.
        (12, 4, 1e-12, -1.0, -2),
        (12, 4, 1e-12, 0.5, -2),
        # The row space is only known to 1e-16 / 1e-10; U sigma g V^T errs by 8e-6.
        (4, 12, 1e-10, 0.5, -2),
    ],
)
def test_float64_keeps_the_direction_of_a_short_row(n, k, length, p, weakest):
    """The error depends on the second smallest singular value, but for sigma^-1 of the smallest.

    Measured over 12 seeds with AVX-512, AVX2 and SSE4.2: at most 4.9 eps sigma_1 / sigma_i.
    """
    rng = torch.Generator().manual_seed(3)
    x = torch.randn(n, k, generator=rng, dtype=torch.float64)
    x[0] *= length
    with mpmath.workdps(60):
        u, sigma, vh = mpmath.svd_r(mpmath.matrix(x.tolist()))
        gained = mpmath.diag([s ** (1 + p) for s in sigma])
        filtered = u * gained * vh
    expected = torch.tensor(filtered.tolist(), dtype=torch.float64)
    condition = float(sigma[0] / sigma[min(n, k) + weakest])
    for branch in BRANCHES:
        out = SpectralFilter(branch, "pow", p)(x.requires_grad_())
        assert row_error(out, expected) < 15 * torch.finfo(x.dtype).eps * condition
