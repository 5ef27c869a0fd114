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

SHAPES = [(64, 512), (128, 64), (64, 64)]
KINDS = ["gaussian", "1/i", "1/i^2", "batchnorm"]
FILTERS = [("pow", p) for p in (1.0, -0.5, -1.0)]
FILTERS += [("log", None), ("log1p", None), ("log1p_sq", None)]
# Measured over all cases below: at most 3.1e-7 for values and 3.9e-6 for gradients.
EXACT = 1e-5


def row_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Return the largest difference of two rows after both are scaled to length 1."""

    def unit(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().double()
        x = x / x.abs().amax(1, keepdim=True).clamp_min(1e-320)  # squares may leave the range
        return torch.nn.functional.normalize(x, dim=1, eps=1e-300)

    return float((unit(got) - unit(want)).norm(dim=1).max())


def random_like(x: torch.Tensor) -> torch.Tensor:
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(x.dtype)


@pytest.fixture(scope="module", params=[(n, k, kind) for n, k in SHAPES for kind in KINDS], ids=str)
def batch(request):
    """A batch, and a function from a gain and a gradient to what a float64 SVD gives for them."""
    n, k, kind = request.param
    x = features(kind, n, k)
    u, sigma, vh = torch.linalg.svd(x.double(), full_matrices=False)
    kept = sigma > relative_cut(torch.float32, n, k) * sigma[0]

    def want(gain, grad):
        g = torch.where(kept, gain(torch.where(kept, sigma, 1.0)), 0.0)
        return (u * (sigma * g)) @ vh, (grad.double() @ vh.mT * g) @ vh

    return x, want


@pytest.mark.parametrize(("name", "p"), FILTERS)
def test_values_and_gradients_equal_the_oracle(batch, name, p):
    x, want = batch
    grad = random_like(x)
    values, gradient = want(get(name, p), grad)
    leaf = x.clone().requires_grad_()
    out = SpectralFilter("online", name, p)(leaf)
    assert row_error(out, values) <= EXACT
    out.backward(grad)
    assert row_error(leaf.grad, gradient) <= EXACT
    # Not only the direction, also the scale is that of Algorithm 2.
    assert float((out.detach().double() - values).norm() / values.norm()) <= EXACT
    out = SpectralFilter("target", name, p)(leaf)
    assert not out.requires_grad
    assert row_error(out, values) <= EXACT


@settings(max_examples=25, deadline=None)
@given(p=st.floats(-1.5, 2.0), seed=st.integers(0, 2**16), wide=st.booleans())
def test_a_target_power_leaves_the_spectrum_lam_to_the_1_plus_p(p, seed, wide):
    x = features("1/i", *((12, 40) if wide else (40, 12)), seed=seed)
    before = torch.linalg.svdvals(x.double())
    after = torch.linalg.svdvals(SpectralFilter("target", "pow", p)(x).double())
    want = (before ** (1 + p)).sort(descending=True).values
    torch.testing.assert_close(after, want, rtol=1e-4, atol=1e-6 * float(want[0]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("branch", ["online", "target"])
def test_the_dtype_is_returned_and_costs_its_own_rounding_only(dtype, branch):
    x = features("gaussian", 64, 256).to(dtype)
    leaf = x.clone().requires_grad_()
    out = SpectralFilter(branch, "pow", p=-0.5)(leaf)
    assert out.dtype == dtype
    want, w = oracle(x, get("pow", -0.5), relative_cut(dtype, 64, 256))
    exact = 1e-11 if dtype == torch.float64 else max(EXACT, 2 * torch.finfo(dtype).eps)
    assert row_error(out, want) <= exact
    if branch == "online":
        out.backward(torch.ones_like(out))
        assert leaf.grad.dtype == dtype
        assert row_error(leaf.grad, torch.ones_like(x).double() @ w) <= exact


def test_nothing_is_computed_for_a_gradient_that_is_not_wanted():
    x = features("1/i", 24, 40)
    leaf = x.clone().requires_grad_()

    def products(branch: str, batch: torch.Tensor) -> int:
        with FlopCounterMode(display=False) as counter:
            SpectralFilter(branch, "log1p")(batch)
        return counter.get_total_flops()

    assert products("online", x) == products("target", x) < products("online", leaf)
    with torch.no_grad():
        assert products("online", leaf) == products("target", x)


def _running_world(rank: int, size: int) -> torch.Tensor:
    """Return this process's rows of three batches, filtered with a running correlation."""
    spectral = SpectralFilter("online", "pow", p=1.0, momentum=0.9)
    return torch.cat([spectral(x.chunk(size)[rank]) for x in _three_batches()])


def _three_batches() -> list[torch.Tensor]:
    return [
        features(kind, 32, 8) * scale for kind, scale in (("1/i", 1), ("gaussian", 2), ("1/i", 3))
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("branch", ["online", "target"])
def test_a_running_correlation_defines_the_filter(branch, dtype):
    """W is W of the mean C <- m C + (1 - m) X^T X / n, with sigma = sqrt(n lambda)."""
    batches = [x.to(dtype) for x in _three_batches()]
    spectral = SpectralFilter(branch, "pow", p=-0.5, momentum=0.9)
    C = None
    for x in batches:
        got, now = spectral(x), x.double().mT @ x.double() / len(x)
        C = now if C is None else 0.9 * C + 0.1 * now
        lam, vectors = torch.linalg.eigh(C)
        expected = x.double() @ (vectors * (len(x) * lam).pow(-0.25)) @ vectors.mT
        assert row_error(got, expected) < EXACT


def test_a_running_correlation_is_that_of_whole_rows_in_float64():
    spectral, x = SpectralFilter("online", "pow", p=1.0, momentum=0.9), features("1/i", 32, 8)
    spectral(x)
    spectral.float()  # casts the buffer, as `.float()` on a whole model does
    broken = x.clone()
    broken[:16] = torch.nan
    before = spectral.running.double()
    spectral(broken)
    now = (x[16:].double().mT @ x[16:].double()) / 16
    torch.testing.assert_close(spectral.running, 0.9 * before + 0.1 * now)
    with torch.inference_mode():
        spectral(x)
    spectral(x.requires_grad_()).sum().backward()


@pytest.mark.process
def test_a_running_correlation_is_that_of_all_processes(worlds):
    whole = _running_world(0, 1).chunk(3)
    parts = [part.chunk(3) for part in worlds(2).run(_running_world)]
    for i, expected in enumerate(whole):
        torch.testing.assert_close(torch.cat([part[i] for part in parts]), expected)


def test_eval_returns_the_input_and_decomposes_nothing(monkeypatch):
    module = SpectralFilter("target", "pow", p=-0.5).eval()
    monkeypatch.setattr(torch.linalg, "eigh", None)
    monkeypatch.setattr(torch.linalg, "svd", None)
    x = torch.randn(8, 4)
    assert module(x) is x


def test_other_shapes_and_integers_are_refused():
    for x in (torch.ones(3), torch.ones(0, 4), torch.ones(4, 4).long()):
        with pytest.raises(ValueError, match=r"shape \(N, k\)"):
            SpectralFilter("online", "log1p")(x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("n", [32, 192])
def test_the_cut_is_above_what_a_real_head_leaves_in_its_null_direction(n, dtype):
    """A linear layer and batch norm: no oracle that shares the cut."""
    torch.manual_seed(0)
    k = 512
    head = torch.nn.Sequential(torch.nn.Linear(128, k), torch.nn.BatchNorm1d(k, affine=False))
    x = head(features("1/i", n, 128).relu()).detach().to(dtype)
    sigma = torch.linalg.svdvals(x.double())
    null = sigma[-1] if n <= 128 else sigma[129:].max()  # rank 128 and the constant, at most
    assert null < relative_cut(dtype, n, k) * sigma[0]
    out = torch.linalg.svdvals(SpectralFilter("target", "pow", p=-1.0)(x).double())
    assert int((out > 0.5).sum()) <= min(n - 1, 129)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "k"), [(16, 8), (200, 110), (256, 128), (512, 512)])
def test_equal_rows_have_one_direction(n, k, dtype):
    x = features("gaussian", 1, k).to(dtype).expand(n, k).contiguous()
    assert int(decompose(x).directions) == 1


def test_a_row_with_nan_gets_nothing_and_the_others_are_filtered_without_it():
    x = features("1/i", 32, 96)
    leaf = x.clone()
    leaf[5, 3] = math.nan
    others = torch.arange(32) != 5
    leaf.requires_grad_()
    out = SpectralFilter("online", "log1p")(leaf)
    out.backward(torch.ones_like(out))
    want, w = oracle(x[others], get("log1p"), relative_cut(torch.float32, 32, 96))
    assert row_error(out[others], want) <= EXACT
    assert not out[5].any()
    assert not leaf.grad[5].any()
    assert row_error(leaf.grad[others], torch.ones(31, 96).double() @ w) <= EXACT


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_input_is_left_as_it_is(dtype, momentum):
    x = features("gaussian", 8, 4).to(dtype)
    x[2, 1], x[3] = math.nan, 0.0
    before = x.clone()
    for branch in ("online", "target"):
        SpectralFilter(branch, "pow", p=-0.5, momentum=momentum)(x)
        torch.testing.assert_close(x, before, rtol=0, atol=0, equal_nan=True)


def test_a_batch_of_nothing_but_nan_is_an_error():
    with pytest.raises(FloatingPointError, match="all 4 rows"):
        SpectralFilter("target", "pow", p=-0.5)(torch.full((4, 8), math.nan))


def two_empty_directions(x):
    x = x.clone()
    x[0] = x[1]  # beside the one that centring leaves
    return x - x.mean(0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: x, None),  # a batch norm always leaves one empty direction
        (torch.ones_like, "1 of 64 directions"),
        (two_empty_directions, "62 of 64 directions"),
        (lambda x: x.masked_fill(torch.arange(64)[:, None] == 3, math.nan), "1 of 64 rows reached"),
        (lambda x: x.masked_fill(torch.arange(64)[:, None] < 2, 0.0), "2 of 64 rows that reached"),
    ],
)
def test_what_is_mapped_to_zero_is_logged_once(change, words, caplog):
    module = SpectralFilter("target", "pow", p=-0.5)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            module(change(features("batchnorm", 64, 256)))
    assert sum(words is not None and words in r.message for r in caplog.records) == bool(words)
    assert bool(caplog.records) == bool(words)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "k"), [(48, 160), (160, 48)])
def test_rows_keep_their_direction_down_to_the_bound_and_are_dropped_below(n, k, dtype):
    """In half precision short rows are rounded to the same share of themselves as long ones."""
    cut = relative_cut(torch.float64 if dtype == torch.float64 else torch.float32, n, k)
    lengths = torch.where(torch.arange(n) % 2 == 0, 1.0, torch.logspace(0, math.log10(2 * cut), n))
    x = torch.nn.functional.normalize(features("1/i", n, k).double(), dim=1) * lengths[:, None]
    x = x.to(dtype)
    _, w = oracle(x, get("log1p"), relative_cut(dtype, n, k))
    leaf = x.clone().requires_grad_()
    out = SpectralFilter("online", "log1p")(leaf)
    rounding = torch.finfo(dtype).eps * 2
    # The oracle's own rows u_i have rounding of eps64 beside the largest, so rows go through W.
    assert row_error(out, x.double() @ w) <= max(EXACT, rounding)
    out.backward(torch.ones_like(out))
    assert row_error(leaf.grad, torch.ones_like(x).double() @ w) <= max(EXACT, rounding)
    size = x.double().norm(dim=1).square().mean().sqrt() * cut
    for share, dropped in ((0.9, 1), (1.1, 0)):
        y = x.double()
        y[4] *= share * size / y[4].norm()
        assert int(decompose(y.to(dtype)).negligible_rows) == dropped


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_no_row_is_lost_however_many_there_are(dtype):
    """Rows are not compared with the largest singular value, which grows with their number."""
    x = torch.randn(65536, 24, generator=torch.Generator().manual_seed(0))
    x = (x / torch.arange(1, 25)).to(dtype)
    assert (SpectralFilter("target", "pow", -0.5)(x) != 0).any(1).all()


def _bf16_products() -> None:
    matmul = getattr(torch.backends.mkldnn, "matmul", None)
    if not hasattr(matmul, "fp32_precision"):
        pytest.skip("this torch has no precision for mkldnn")
    matmul.fp32_precision = "bf16"


FEWER_DIGITS = {
    "high": lambda: torch.set_float32_matmul_precision("high"),
    "mkldnn bf16": _bf16_products,
    "autocast": lambda: torch.set_autocast_enabled("cpu", True),
}


@pytest.fixture
def _restored_precision():
    yield
    torch.set_float32_matmul_precision("highest")
    torch.set_autocast_enabled("cpu", False)


@pytest.mark.usefixtures("_restored_precision")
@pytest.mark.parametrize("fewer", FEWER_DIGITS)
@pytest.mark.parametrize(("n", "k"), [(64, 256), (256, 64)])
def test_products_are_exact_whatever_torch_allows(n, k, fewer):
    x = features("1/i", n, k)
    _, w = oracle(x, get("log1p"), relative_cut(torch.float32, n, k))
    grad = random_like(x)
    before, after = (x.clone().requires_grad_() for _ in "ab")
    out = SpectralFilter("online", "log1p")(before)
    FEWER_DIGITS[fewer]()  # between forward and backward
    out.backward(grad)
    out = SpectralFilter("online", "log1p")(after)
    out.backward(grad)
    torch.set_autocast_enabled("cpu", False)
    assert out.dtype == torch.float32
    assert row_error(out, x.double() @ w) <= EXACT
    for leaf in (before, after):
        assert row_error(leaf.grad, grad.double() @ w) <= EXACT


def short_rows(seed: int) -> torch.Tensor:
    """Return float32 rows, the first of which reach down to the cut of rounding noise."""
    draw = torch.Generator().manual_seed(seed)
    n, k = [(12, 8), (8, 12), (64, 32), (11, 11)][seed % 4]
    x = torch.randn(n, k, generator=draw, dtype=torch.float64)
    few = 1 + seed % 3
    x[:few] *= relative_cut(torch.float32, n, k) * 10 ** (2.5 * torch.rand(few, 1, generator=draw))
    return x.float()


def clustered(seed: int) -> torch.Tensor:
    """Return float32 rows with as many equal large as equal small singular values."""
    draw = torch.Generator().manual_seed(seed)
    n, k = [(64, 32), (32, 64), (11, 11), (128, 64)][seed % 4]
    u, sigma, vh = torch.linalg.svd(torch.randn(n, k, generator=draw).double(), False)
    sigma.fill_(1.0)[len(sigma) // 2 :] = 10 ** -(1.5 + 4 * float(torch.rand(1, generator=draw)))
    return ((u * sigma) @ vh).float()


@pytest.mark.parametrize("p", [-0.5, -1.0, -2.0, -3.0])
def test_the_error_near_the_cut_is_at_most_the_gram_matrix_s(p):
    """The largest error found was 7.3 eps64 condition^2; the bound allows 16."""
    tested = 0
    for x in [draw(seed) for seed in range(100) for draw in (short_rows, clustered)]:
        spectrum = decompose(x)
        if int(spectrum.directions) < min(x.shape) or int(spectrum.negligible_rows):
            continue  # a direction or a row counts as zero
        u, sigma, vh = torch.linalg.svd(x.double(), full_matrices=False)
        tested += 1
        condition = float(sigma[0] / sigma[-1])
        bound = 3.1e-7 + 16 * torch.finfo(torch.float64).eps * condition ** max(2, -p)
        want = (u * sigma ** (1 + p)) @ vh
        assert row_error(SpectralFilter("target", "pow", p)(x), want) <= bound
    assert tested > 100


@pytest.mark.parametrize(
    ("n", "k", "length", "p", "bound"),
    [
        # Rows times V g V^T have errors of 4.7e-5 and 2 (an antiparallel row).
        (11, 11, 1e-10, -1.0, 1e-14),
        (11, 11, 1e-10, -2.0, 1e-5),
        # U sigma g V^T has errors of 2e-4 to 6e-4.
        (12, 4, 1e-12, -1.0, 1e-14),
        (12, 4, 1e-12, -0.5, 1e-14),
        (12, 4, 1e-12, 0.5, 1e-14),
        # The row space is only known to 1e-16 / 1e-10; U sigma g V^T errs by 8e-6.
        (4, 12, 1e-10, 0.5, 1e-9),
    ],
)
def test_float64_keeps_the_direction_of_a_short_row(n, k, length, p, bound):
    """Against 60 digits."""
    x = torch.randn(n, k, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    x[0] *= length
    with mpmath.workdps(60):
        u, sigma, vh = mpmath.svd_r(mpmath.matrix(x.tolist()))
        want = u * mpmath.diag([s ** (1 + p) for s in sigma]) * vh
    want = torch.tensor([[*map(float, row)] for row in want.tolist()], dtype=torch.float64)
    for branch in ("online", "target"):
        assert row_error(SpectralFilter(branch, "pow", p)(x), want) < bound
