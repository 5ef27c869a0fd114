"""Spectral filters against a float64 SVD, on bad batches, in half precision, by the registry."""

from __future__ import annotations

import logging
import math
import pkgutil
import subprocess
import sys

import pytest
import torch
from conftest import features, oracle
from hypothesis import given, settings
from hypothesis import strategies as st

from rdm_solo.filters import (
    Schedule,
    SpectralFilter,
    as_schedule,
    decompose,
    filter_gradient,
    filter_online,
    filter_target,
    gains,
    get,
    names,
    register,
    relative_cut,
    takes_p,
)

SHAPES = [(256, 2048), (128, 512), (512, 256), (64, 64)]
KINDS = ["gaussian", "1/i", "1/i^2", "batchnorm"]
ONLINE = [("pow", 1.0), ("pow", 0.5), ("pow", -0.5), ("log", None), ("log1p", None)]
ONLINE += [("log1p_sq", None)]
TARGET = [("pow", p) for p in (-0.3, -0.5, -0.7, -1.0, 0.5)]
# Measured over all cases below: at most 3.1e-7 for values and 3.9e-6 for gradients.
EXACT = 1e-5


def row_error(got: torch.Tensor, want: torch.Tensor) -> float:
    def unit(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.normalize(x.detach().double(), dim=1, eps=1e-300)

    return float((unit(got) - unit(want)).norm(dim=1).max())


@pytest.fixture(scope="module", params=[(n, k, kind) for n, k in SHAPES for kind in KINDS], ids=str)
def batch(request):
    """A batch, its float64 SVD and what a filter of that gain makes of it, by that SVD."""
    n, k, kind = request.param
    x = features(kind, n, k)
    u, sigma, vh = torch.linalg.svd(x.double(), full_matrices=False)
    kept = sigma > relative_cut(torch.float32, n, k) * sigma[0]

    def want(gain, grad):
        g = torch.where(kept, gain(torch.where(kept, sigma, 1.0)), 0.0)
        return (u * (sigma * g)) @ vh, (grad.double() @ vh.mT * g) @ vh

    return x, want


@pytest.mark.parametrize(("name", "p"), ONLINE)
def test_online_values_and_gradients_equal_the_oracle(batch, name, p):
    x, want = batch
    grad = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    values, gradient = want(get(name, p), grad)
    leaf = x.clone().requires_grad_()
    out = SpectralFilter("online", name, p)(leaf)
    assert row_error(out, values) <= EXACT
    out.backward(grad)
    assert row_error(leaf.grad, gradient) <= EXACT
    # The scale is the printed algorithm's as well, not only the direction.
    assert float((out.detach().double() - values).norm() / values.norm()) <= EXACT


@pytest.mark.parametrize(("name", "p"), TARGET)
def test_target_values_equal_the_oracle_and_carry_no_gradient(batch, name, p):
    x, want = batch
    out = SpectralFilter("target", name, p)(x.clone().requires_grad_())
    assert not out.requires_grad
    assert row_error(out, want(get(name, p), x)[0]) <= EXACT


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "k"), [(24, 40), (40, 24), (30, 30)])
def test_the_functions_by_themselves_equal_an_svd(n, k, dtype):
    """Spectrum, gains, both applications and the gradient, each against its definition."""
    x = features("1/i", n, k).to(dtype)
    exact = 1e-6 if dtype == torch.float32 else 1e-11
    u, sigma, vh = torch.linalg.svd(x.double(), full_matrices=False)
    spectrum = decompose(x)
    assert spectrum.dual == (n < k)
    torch.testing.assert_close(spectrum.sigma.flip(0), sigma, rtol=1e-9, atol=1e-12)
    gain = gains(spectrum, torch.log1p)
    torch.testing.assert_close(gain.flip(0), sigma.log1p(), rtol=1e-9, atol=1e-12)
    values, w = (u * (sigma * sigma.log1p())) @ vh, vh.mT * sigma.log1p() @ vh
    out, operator = filter_online(spectrum, gain)
    for found in (out, filter_target(spectrum, gain)):
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), values, rtol=exact, atol=exact)
    grad = torch.randn(n, k, generator=torch.Generator().manual_seed(1), dtype=dtype)
    back = filter_gradient(grad, operator)
    assert back.dtype == dtype
    torch.testing.assert_close(back.double(), grad.double() @ w, rtol=10 * exact, atol=10 * exact)


@pytest.mark.parametrize(
    ("dtype", "peak", "size"),
    [
        (torch.float32, 1e-4, 1e-4),
        (torch.float32, 0.9999e-4, 1.0),
        (torch.float32, 1e15, 1e15),
        (torch.float32, 1.0001e15, 1.0),
        (torch.float16, 1e-3, 1e-3),
        (torch.float16, 0.9999e-3, 1.0),
        (torch.float16, 1e3, 1e3),
        (torch.float16, 1.0001e3, 1.0),
        (torch.float32, 0.0, 0.0),
    ],
)
def test_gains_that_leave_the_range_are_rescaled_by_one_constant(dtype, peak, size):
    spectrum = decompose(torch.diag(torch.tensor([2.0, 1.0, 0.5])).to(dtype))
    gain = gains(spectrum, lambda sigma: torch.full_like(sigma, -peak / 2))
    assert float((gain * spectrum.sigma).abs().max()) == pytest.approx(size, rel=1e-12)
    assert len(gain.unique()) == 1


def test_the_gradient_of_the_cosine_loss_equals_the_oracles():
    x, z = features("batchnorm", 128, 512), features("gaussian", 128, 512, seed=3)
    _, w = oracle(x, get("log1p"), relative_cut(torch.float32, 128, 512))
    leaf = x.clone().requires_grad_()
    out = SpectralFilter("online", "log1p")(leaf)
    torch.nn.functional.cosine_similarity(out, z).mean().backward()
    wide = x.double().requires_grad_()
    torch.nn.functional.cosine_similarity(wide @ w, z.double()).mean().backward()
    assert row_error(leaf.grad, wide.grad) <= EXACT
    assert float((leaf.grad - wide.grad).norm() / wide.grad.norm()) <= EXACT


@settings(max_examples=25, deadline=None)
@given(p=st.floats(-1.5, 2.0), seed=st.integers(0, 2**16), wide=st.booleans())
def test_a_target_power_leaves_the_spectrum_lam_to_the_1_plus_p(p, seed, wide):
    x = features("1/i", *((12, 40) if wide else (40, 12)), seed=seed)
    before = torch.linalg.svdvals(x.double())
    after = torch.linalg.svdvals(SpectralFilter("target", "pow", p)(x).double())
    want = (before ** (1 + p)).sort(descending=True).values
    torch.testing.assert_close(after, want, rtol=1e-4, atol=1e-6 * float(want[0]))


@pytest.mark.parametrize(("n", "k"), [(20, 48), (48, 20)])
def test_float64_keeps_directions_that_a_gram_matrix_would_lose(n, k):
    """A tall batch on several processes has its Gram matrix alone, and the cut of float32."""
    x = features("gaussian", n, k).double()
    u, _, vh = torch.linalg.svd(x, full_matrices=False)
    sigma = torch.logspace(0, -9, min(n, k), dtype=torch.float64)
    whitened = SpectralFilter("target", "pow", -1.0)((u * sigma) @ vh)
    assert torch.linalg.matrix_rank(whitened) == min(n, k)
    # Entries are off by at most 5.3e-8 over 20 seeds; eps times the condition number is 2e-7.
    torch.testing.assert_close(whitened, u @ vh, atol=5e-7, rtol=0)


def test_float64_keeps_its_digits_and_passes_gradcheck_for_a_constant_w():
    x = features("1/i^2", 20, 48).double()
    want, w = oracle(x, get("pow", -0.5), relative_cut(torch.float64, 20, 48))
    leaf = x.clone().requires_grad_()
    out = SpectralFilter("online", "pow", p=-0.5)(leaf)
    assert row_error(out, want) <= 1e-11
    out.backward(torch.ones_like(out))
    assert row_error(leaf.grad, torch.ones_like(x) @ w) <= 1e-11


BAD = {
    "zero": lambda x: torch.zeros_like(x),
    "constant": lambda x: torch.ones_like(x) * 3,
    "duplicated": lambda x: x[:1].repeat(len(x), 1),
    "rank 10": lambda x: x[:, :10] @ x[:10],
    "huge": lambda x: x * 1e15,
    "tiny": lambda x: x * 1e-15,
    "one zero row": lambda x: torch.cat([torch.zeros_like(x[:1]), x[1:]]),
    "one row": lambda x: x[:1],
    "one column": lambda x: x[:, :1],
    "one number": lambda x: x[:1, :1],
    "a NaN": lambda x: torch.where(torch.arange(x.numel()).view_as(x) == 7, math.nan, x),
    "an infinity": lambda x: torch.where(torch.arange(x.numel()).view_as(x) == 7, math.inf, x),
}


@pytest.mark.parametrize("branch", ["online", "target"])
@pytest.mark.parametrize("name", ["pow", "log", "log1p", "log1p_sq"])
@pytest.mark.parametrize("shape", [(32, 96), (96, 32)])
@pytest.mark.parametrize("what", BAD)
def test_bad_batches_give_finite_outputs_and_gradients(what, shape, name, branch):
    x = BAD[what](features("batchnorm", *shape))
    for p in (-10, -1.5, -1.0, 1.0, 10) if name == "pow" else (None,):
        leaf = x.clone().requires_grad_()
        out = SpectralFilter(branch, name, p)(leaf)
        assert out.isfinite().all()
        if branch == "online":
            loss = -torch.nn.functional.cosine_similarity(out, torch.ones_like(out)).mean()
            loss.backward()
            assert leaf.grad.isfinite().all()


@pytest.mark.parametrize("scale", [1e15, 1e-15])
@pytest.mark.parametrize("p", [-1.5, -1.0, -0.5, 1.0])
def test_scaled_batches_keep_their_directions_and_a_size_that_losses_can_normalise(scale, p):
    x = features("1/i", 32, 96) * scale
    want, _ = oracle(x, get("pow", p), relative_cut(torch.float32, 32, 96))
    out = SpectralFilter("target", "pow", p)(x)
    assert row_error(out, want) <= EXACT
    norms = out.norm(dim=1)
    assert norms.min() > 1e-7
    assert norms.max() < 1e16


def test_null_directions_are_dropped_and_not_blown_up():
    signal = features("gaussian", 10, 64)
    mixing = torch.randn(256, 10, generator=torch.Generator().manual_seed(2))
    x = mixing @ signal  # rank 10 of 64, the rest is float32 rounding
    out = SpectralFilter("target", "pow", p=-1.0)(x)
    sigma = torch.linalg.svdvals(out.double())
    torch.testing.assert_close(sigma[:10], torch.ones(10).double(), rtol=1e-4, atol=0)
    assert sigma[10:].max() < 1e-4


def test_the_null_direction_of_a_batch_norm_is_dropped():
    x = features("batchnorm", 128, 512)
    out = SpectralFilter("target", "pow", p=-1.0)(x)
    assert int((torch.linalg.svdvals(out.double()) > 0.5).sum()) == 127


def test_a_row_with_nan_gets_nothing_and_the_others_are_filtered_without_it(caplog):
    x = features("1/i", 32, 96)
    broken = x.clone()
    broken[5, 3] = math.nan
    others = torch.arange(32) != 5
    module = SpectralFilter("online", "log1p")
    with caplog.at_level(logging.WARNING):
        leaf = broken.requires_grad_()
        out = module(leaf)
        out.backward(torch.ones_like(out))
        module(broken)
    want, w = oracle(x[others], get("log1p"), relative_cut(torch.float32, 32, 96))
    assert row_error(out[others], want) <= EXACT
    assert not out[5].any()
    assert not leaf.grad[5].any()
    assert row_error(leaf.grad[others], torch.ones(31, 96).double() @ w) <= EXACT
    assert [r.message for r in caplog.records if "NaN" in r.message] == [
        "1 of 32 rows reached the online filter with NaN or infinity; such rows are mapped to "
        "zero and get no gradient."
    ]


def test_a_batch_of_nothing_but_nan_is_an_error_in_words():
    with pytest.raises(FloatingPointError, match=r"all 4 rows.*NaN or infinity"):
        SpectralFilter("target", "pow", p=-0.5)(torch.full((4, 8), math.nan))


def test_a_collapse_is_said_once_and_a_batch_norms_null_direction_never(caplog):
    module = SpectralFilter("target", "pow", p=-0.5)
    with caplog.at_level(logging.WARNING):
        module(features("batchnorm", 64, 256))
        assert not caplog.records
        for _ in range(3):
            module(torch.ones(64, 256))
    assert len(caplog.records) == 1
    assert "1 of 64 directions" in caplog.records[0].message


def test_a_second_empty_direction_is_said(caplog):
    x = features("batchnorm", 64, 256)
    x[0] = x[1]  # beside the one that centring leaves
    x -= x.mean(0)
    with caplog.at_level(logging.WARNING):
        SpectralFilter("target", "pow", p=-0.5)(x)
    assert "has 62 of 64 directions above rounding noise" in caplog.text


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("branch", ["online", "target"])
def test_dtype_is_returned_and_half_precision_costs_its_own_rounding_only(dtype, branch):
    x = features("gaussian", 64, 256).to(dtype)
    leaf = x.clone().requires_grad_()
    out = SpectralFilter(branch, "pow", p=-0.5)(leaf)
    assert out.dtype == dtype
    want, _ = oracle(x, get("pow", -0.5), relative_cut(dtype, 64, 256))
    assert row_error(out, want) <= max(EXACT, 2 * torch.finfo(dtype).eps)
    if branch == "online":
        out.sum().backward()
        assert leaf.grad.dtype == dtype
        assert leaf.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["gaussian", "1/i", "1/i^2"])
@pytest.mark.parametrize(("n", "k"), [(32, 512), (128, 512), (256, 2048)])
def test_the_half_precision_cut_is_above_the_rounding_it_is_there_for(dtype, kind, n, k):
    x = features(kind, n, k)
    x = torch.nn.functional.batch_norm(x, None, None, training=True).to(dtype).double()
    # Centred: the all-ones direction holds rounding alone.
    null = torch.ones(n, dtype=torch.float64) / math.sqrt(n)
    share = (null @ x).norm() / torch.linalg.svdvals(x)[0]
    assert share < relative_cut(dtype, n, k) / 1.5


@pytest.mark.parametrize("n", [32, 128, 512, 640])
def test_the_cut_is_above_what_a_real_head_leaves_in_its_null_direction(n):
    """A float32 linear layer and batch norm: no oracle that shares the cut."""
    torch.manual_seed(0)
    k = 2048
    head = torch.nn.Sequential(torch.nn.Linear(512, k), torch.nn.BatchNorm1d(k, affine=False))
    x = head(features("1/i", n, 512).relu()).detach()
    sigma = torch.linalg.svdvals(x.double())
    null = sigma[-1] if n <= 512 else sigma[513:].max()  # rank 512 and the constant, at most
    assert null < relative_cut(torch.float32, n, k) * sigma[0]
    out = torch.linalg.svdvals(SpectralFilter("target", "pow", p=-1.0)(x).double())
    assert int((out > 0.5).sum()) <= min(n - 1, 513)


def test_autocast_does_not_reach_into_the_filter():
    x = features("1/i^2", 64, 256)
    plain = SpectralFilter("online", "pow", p=-0.5)(x.clone().requires_grad_())
    leaf = x.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        inside = SpectralFilter("online", "pow", p=-0.5)(leaf)
        inside.backward(torch.ones_like(inside))
    assert torch.equal(plain, inside)
    _, w = oracle(x, get("pow", -0.5), relative_cut(torch.float32, 64, 256))
    assert row_error(leaf.grad, torch.ones(64, 256).double() @ w) <= EXACT


def test_layout_does_not_matter():
    x = features("1/i", 64, 96)
    strided = torch.stack([x, x], dim=2)[..., 0]
    assert not strided.is_contiguous()
    for branch in ("online", "target"):
        for y in (strided, x.t().contiguous().t()):
            a = SpectralFilter(branch, "log1p")(x.clone().requires_grad_())
            b = SpectralFilter(branch, "log1p")(y.clone().requires_grad_())
            assert row_error(b, a.detach().double()) <= EXACT


def test_eval_returns_the_input_and_decomposes_nothing(monkeypatch):
    module = SpectralFilter("target", "pow", p=-0.5).eval()
    monkeypatch.setattr(torch.linalg, "eigh", None)
    monkeypatch.setattr(torch.linalg, "svd", None)
    x = torch.randn(8, 4)
    assert module(x) is x


@pytest.mark.parametrize(
    "x", [torch.ones(3), torch.ones(2, 3, 4), torch.ones(0, 4), torch.ones(4, 4).long()]
)
def test_what_is_no_batch_is_refused(x):
    with pytest.raises(ValueError, match=r"shape \(N, k\)"):
        SpectralFilter("online", "log1p")(x)


def test_the_registry_takes_one_line_and_any_callable():
    @register("test_half")
    def half(sigma):
        return 0.5 * torch.ones_like(sigma)

    assert "test_half" in names()
    assert not takes_p("test_half")
    x = features("gaussian", 16, 32)
    for function in ("test_half", half, lambda sigma: torch.full_like(sigma, 0.5)):
        torch.testing.assert_close(SpectralFilter("target", function)(x), x / 2)
    with pytest.raises(ValueError, match="registered already"):
        register("test_half")(lambda sigma: sigma)


def without_result(sigma):
    return None


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: get("lgo1p"), "did you mean 'log1p'"),
        (lambda: get("log1p", p=1.0), "has none, got p=1.0"),
        (lambda: get("pow"), "needs an exponent p"),
        (lambda: get(3), "no filter function 3"),
        (lambda: get("torch.tahn"), r"cannot be imported \(.*tahn"),
        (lambda: get("no_such_module.soft"), r"cannot be imported \(No module"),
        (lambda: get("torch.pi"), "'torch.pi' is a float, no function"),
        (lambda: SpectralFilter("left", "log"), "'online' or 'target', got 'left'"),
        (lambda: SpectralFilter("online", torch.sum), r"'sum' must return .* shape \(\) for 8 of"),
        (lambda: SpectralFilter("online", "torch.sum"), "'torch.sum' must return one number for"),
        (lambda: SpectralFilter("online", without_result), "got NoneType for 8 of them"),
        (lambda: SpectralFilter("online", lambda sigma: sigma[1:]), r"got shape \(7,\) for 8 of"),
        (lambda: SpectralFilter("online", torch.matmul), r"'matmul' fails on a tensor of 8 \("),
        (
            lambda: SpectralFilter("target", lambda sigma: sigma * math.nan)(torch.eye(3)),
            "returned NaN or infinity",
        ),
        (
            lambda: SpectralFilter("target", lambda sigma: sigma[:8])(torch.eye(9)),
            r"got shape \(8,\) for 9 of",
        ),
    ],
)
def test_refusals_say_what_was_got(make, says):
    with pytest.raises(ValueError, match=says):
        make()


@pytest.mark.parametrize(
    "p", ["x", math.nan, math.inf, -math.inf, 1e30, -50, 10.001, 10**400, True, [1]]
)
def test_exponents_that_nothing_could_use_are_refused(p):
    for make in (
        lambda: SpectralFilter("online", "pow", p=p),
        lambda: get("pow", p),
        lambda: as_schedule({"schedule": "linear", "start": 0, "end": p}, epochs=3),
        lambda: Schedule("constant", p),
    ):
        with pytest.raises(
            ValueError, match=r"must be a number from -10 to 10( or a sch.*)?, got "
        ):
            make()


@pytest.mark.parametrize(
    ("kind", "ends", "missing"),
    [("linear", {"start": 0}, "end"), ("cosine", {"end": 0}, "start"), ("constant", {}, "start")],
)
def test_a_schedule_without_one_of_its_ends_is_refused(kind, ends, missing):
    with pytest.raises(ValueError, match=f"a {kind} schedule needs a number for '{missing}'"):
        as_schedule({"schedule": kind, **ends}, epochs=3)


@pytest.mark.parametrize("p", [-10, 10])
def test_the_largest_exponents_are_used(p):
    assert float(get("pow", p)(torch.tensor([2.0]).double())) == 2.0**p


@pytest.mark.parametrize("name", ["os.system", "shutil.rmtree", "builtins.print", "math.sqrt"])
def test_functions_of_the_standard_library_are_refused_and_not_called(name, capfd):
    for function in (name, pkgutil.resolve_name(name)):
        with pytest.raises(ValueError, match="part of Python's standard library"):
            SpectralFilter("online", function)
    assert capfd.readouterr().out == ""


def test_filters_import_torch_alone():
    code = (
        "import sys, torch; before = set(sys.modules); import rdm_solo.filters; "
        "new = {name.split('.')[0] for name in set(sys.modules) - before}; "
        "print(sorted(new - set(sys.stdlib_module_names)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "['rdm_solo']"


def test_p_follows_its_schedule():
    module = SpectralFilter("target", "pow", p=Schedule("linear", 0.0, -1.0, epochs=3))
    x = features("1/i", 16, 32)
    for epoch, p in enumerate([0.0, -0.5, -1.0, -1.0]):
        module.set_epoch(epoch)
        assert module.p == pytest.approx(p)
        assert torch.equal(module(x), SpectralFilter("target", "pow", p=module.p)(x))


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_the_shortest_schedules_still_end_at_their_end(kind):
    assert Schedule(kind, 0.0, -1.0, epochs=1)(0) == -1.0
    assert [Schedule(kind, 0.0, -1.0, epochs=2)(epoch) for epoch in range(3)] == [0.0, -1.0, -1.0]


def test_a_filter_has_no_state_to_save():
    assert not SpectralFilter("online", "log1p").state_dict()
