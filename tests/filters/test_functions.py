"""Functions of singular values: the registry, exponents, schedules, and values in range."""

import math

import pytest
import torch
from conftest import features

from rdm_solo.filters import (
    Schedule,
    SpectralFilter,
    as_schedule,
    decompose,
    get,
    names,
    register,
    takes_p,
)
from rdm_solo.filters.application import gains, rescale
from rdm_solo.filters.functions import SHIPPED

SPECTRUM = torch.diag(torch.tensor([4.0, 2.0, 1.0]))
LINEAR = {"schedule": "linear", "start": 0, "end": 1}


def test_a_function_is_registered_or_given_as_it_is():
    @register("test_half")
    def half(sigma):
        return 0.5 * torch.ones_like(sigma)

    assert "test_half" in names()
    assert not takes_p("test_half")
    x = features("gaussian", 16, 32)
    for function in ("test_half", half, lambda sigma: torch.full_like(sigma, 0.5)):
        torch.testing.assert_close(SpectralFilter("target", function)(x), x / 2)
    with pytest.raises(ValueError, match="already registered"):
        register("test_half")(lambda sigma: sigma)


@pytest.mark.parametrize("name", SHIPPED)
def test_facts_on_a_shipped_function_are_true(name):
    entry = SHIPPED[name]
    assert ("{p}" in entry.formula) == takes_p(name)
    values = get(name, 0.5 if takes_p(name) else None)(torch.logspace(-3, 3, 100), 64).abs()
    if entry.slope:
        assert (entry.slope * values.diff() >= 0).all()
        assert values[0] != values[-1]


def _iternorm(C):
    trace, P = C.trace(), torch.eye(len(C), dtype=C.dtype)
    for _ in range(4):
        P = (3 * P - P @ P @ P @ C / trace) / 2
    return P / trace.sqrt()


def _power(C, p):
    lam, vectors = torch.linalg.eigh(C)
    return (vectors * lam.pow(p)) @ vectors.mT


def _projection(C):
    vectors = torch.linalg.eigh(C).eigenvectors[:, -3:]
    return vectors @ vectors.mT


EYE = torch.eye(8, dtype=torch.float64)


@pytest.mark.parametrize(
    ("name", "parameters", "matrix"),
    [
        ("iternorm", {"steps": 4}, _iternorm),
        ("directcopy", {"eps": 0.3}, lambda C: C / torch.linalg.matrix_norm(C, 2) + 0.3 * EYE),
        (
            "directcopy",
            {"alpha": 0.5, "eps": 0.3},
            lambda C: _power(C / torch.linalg.matrix_norm(C, 2), 0.5) + 0.3 * EYE,
        ),
        ("shrink", {"eps": 0.1}, lambda C: _power(C + 0.1 * EYE, -0.5)),
        ("truncate", {"keep": 3}, _projection),
    ],
)
def test_functions_equal_their_matrix_form(name, parameters, matrix):
    """W is a function of the batch's correlation matrix, which the literature computes."""
    x = features("gaussian", 64, 8).double()
    expected = x @ matrix(x.mT @ x / len(x))
    for branch in ("online", "target"):
        got = SpectralFilter(branch, name, **parameters)(x)
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: get("lgo1p"), "did you mean 'log1p'"),
        (lambda: get("no_such_module.soft"), "cannot be imported"),
        (lambda: takes_p("my_filter.soft"), "cannot be imported"),
        (lambda: get("torch.pi"), "float, not a function"),
        (lambda: get("log1p", p=1.0), "takes no exponent, got p=1.0"),
        (lambda: get("pow"), "needs an exponent p"),
        (lambda: get("truncate", kept=3), "unexpected keyword argument 'kept'"),
        (lambda: get("truncate", keep=0), "filter.keep must be"),
        (lambda: get(lambda sigma, scale: sigma * scale), "missing a required argument: 'scale'"),
        (lambda: get("shrink")(SPECTRUM.diagonal()), "needs rows"),
        (lambda: SpectralFilter("target", "log", momentum=2), "momentum must be"),
        (lambda: SpectralFilter("left", "log"), "'online' or 'target', got 'left'"),
        (lambda: get(lambda sigma: sigma[:8]), r"got shape \(8,\) for 13"),
        (lambda: get(lambda sigma: sigma.tolist()), "got list"),
        (lambda: get(lambda sigma: sigma + 0j), "got torch.complex128"),
        (lambda: get(lambda sigma: sigma.half()), "got torch.float16"),
        (lambda: SpectralFilter("target", lambda sigma: sigma / 0)(SPECTRUM), "NaN or infinity"),
        (lambda: as_schedule({"schedule": "cosine", "end": 0}, epochs=3), "number for 'start'"),
        (lambda: as_schedule({**LINEAR, "schedule": "linaer"}, epochs=3), "did you mean 'linear'"),
        (lambda: as_schedule({**LINEAR, "epoch": 2}, epochs=3), "key 'epoch'"),
        (lambda: as_schedule({**LINEAR, "epochs": 0}, epochs=3), "at least 1, got 0"),
    ],
)
def test_refused_functions_and_schedules(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    ("function", "want"),
    [
        (lambda sigma: sigma > 1.5, [0, 1, 1]),
        (lambda sigma: sigma.long(), [1, 2, 4]),
        (lambda sigma: sigma.square_(), [1, 4, 16]),  # changes its argument
    ],
)
def test_exact_values_of_any_dtype_are_used(function, want):
    spectrum = decompose(SPECTRUM)
    assert gains(spectrum, get(function)).tolist() == want
    assert spectrum.sigma.tolist() == [1, 2, 4]
    out = SpectralFilter("target", function)(SPECTRUM)
    assert out.diagonal().flip(0).tolist() == [a * b for a, b in zip(want, [1, 2, 4])]


def test_no_gradient_reaches_what_a_gain_was_computed_from():
    weight = torch.tensor(2.0, requires_grad=True)
    leaf = SPECTRUM.clone().requires_grad_()
    SpectralFilter("online", lambda sigma: sigma * weight)(leaf).sum().backward()
    assert weight.grad is None


@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e300])
@pytest.mark.parametrize("p", [-10, 0.5, 10])
def test_powers_beyond_the_range_keep_their_ratios(p, scale):
    sigma = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    powers = get("pow", p)(sigma * scale)
    assert powers.isfinite().all()
    torch.testing.assert_close(powers / powers[0], sigma.pow(p), rtol=1e-12, atol=0)
    if abs(p * math.log(scale)) < 500:
        torch.testing.assert_close(powers, (sigma * scale).pow(p), rtol=0, atol=0)
    assert get("pow", p)(sigma[:0]).shape == (0,)


@pytest.mark.parametrize(
    ("dtype", "low", "high"), [(torch.float32, 1e-4, 1e15), (torch.float16, 1e-3, 1e3)]
)
def test_gains_that_leave_the_range_are_rescaled_by_one_constant(dtype, low, high):
    spectrum = decompose(torch.diag(torch.tensor([2.0, 1.0, 0.5])).to(dtype))
    for peak, size in ((low, low), (0.9999 * low, 1), (high, high), (1.0001 * high, 1), (0, 0)):
        gain = rescale(spectrum, torch.full_like(spectrum.sigma, -peak / 2))
        assert float((gain * spectrum.sigma).abs().max()) == pytest.approx(size, rel=1e-12)
        assert len(gain.unique()) == 1


@pytest.mark.parametrize("p", ["x", math.nan, math.inf, 1e30, 10.001, 10**400, True, [1]])
def test_exponents_that_nothing_could_use_are_refused(p):
    for make in (
        lambda: SpectralFilter("online", "pow", p=p),
        lambda: as_schedule({**LINEAR, "end": p}, epochs=3),
        lambda: Schedule("constant", p),
    ):
        with pytest.raises(ValueError, match="must be a number from -10 to 10"):
            make()
    assert float(get("pow", -10)(torch.tensor([2.0]).double())) == 2.0**-10


def test_p_follows_its_schedule():
    module = SpectralFilter("target", "pow", p=Schedule("linear", 0.0, -1.0, epochs=3))
    x = features("1/i", 16, 32)
    for epoch, p in enumerate([0.0, -0.5, -1.0, -1.0]):
        module.set_epoch(epoch)
        assert module.p == pytest.approx(p)
        assert torch.equal(module(x), SpectralFilter("target", "pow", p=module.p)(x))
    assert repr(module) == "SpectralFilter(target, pow, p=-1)"
    cosine = Schedule("cosine", 0.0, -1.0, epochs=3)
    assert [cosine(epoch) for epoch in range(4)] == pytest.approx([0, -0.5, -1, -1])
    for kind in ("linear", "cosine"):
        assert Schedule(kind, 0.0, -1.0, epochs=1)(0) == -1.0
        assert [Schedule(kind, 0.0, -1.0, epochs=2)(epoch) for epoch in range(3)] == [0, -1, -1]
