"""Functions of singular values: the registry, exponents, schedules, and values in range."""

import math

import pytest
import torch
from conftest import features
from omegaconf import OmegaConf

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
from rdm_solo.ground.errors import UserError

SPECTRUM = torch.diag(torch.tensor([4.0, 2.0, 1.0]))
EYE = torch.eye(8, dtype=torch.float64)


def half(sigma):
    return torch.full_like(sigma, 0.5)


def test_a_function_is_registered_or_passed_as_it_is():
    register("test_half")(half)
    assert "test_half" in names()
    assert not takes_p("test_half")
    x = features("gaussian", 16, 32)
    for function in ("test_half", half, f"{__name__}.half"):
        module = SpectralFilter("target", function)
        torch.testing.assert_close(module(x), x / 2)
    register("mine.half")(half)  # a dot need not mean a module
    assert get("mine.half")(torch.ones(1)) == 0.5
    with pytest.raises(ValueError, match="pow"):
        register("pow")(half)


@pytest.mark.parametrize("name", SHIPPED)
def test_properties_of_a_shipped_function_are_true(name):
    entry = SHIPPED[name]
    assert ("{p}" in entry.formula) == takes_p(name)
    if entry.slope:
        function = get(name)
        sigma = torch.logspace(-3, 3, 100)
        values = function(sigma, 64).abs()
        assert (entry.slope * values.diff() >= 0).all()
        assert values[0] != values[-1]


def _power(C, p):
    lam, vectors = torch.linalg.eigh(C)
    return (vectors * lam.pow(p)) @ vectors.mT


def _iternorm(C):
    trace = C.trace()
    P = EYE
    for _ in range(4):
        P = (3 * P - P @ P @ P @ C / trace) / 2
    return P / trace.sqrt()


def _directpred(C):
    scaled = C / torch.linalg.matrix_norm(C, 2)
    return _power(scaled, 0.5) + 0.3 * EYE


def _shrink(C):
    return _power(C + 0.1 * EYE, -0.5)


def _projection(C):
    vectors = torch.linalg.eigh(C).eigenvectors[:, -3:]
    return vectors @ vectors.mT


@pytest.mark.parametrize(
    ("name", "parameters", "matrix"),
    [
        ("iternorm", {"steps": 4}, _iternorm),
        ("directcopy", {"alpha": 0.5, "eps": 0.3}, _directpred),
        ("shrink", {"eps": 0.1}, _shrink),
        ("truncate", {"keep": 3}, _projection),
    ],
)
@pytest.mark.parametrize("branch", ["online", "target"])
def test_functions_equal_their_matrix_form(branch, name, parameters, matrix):
    """The literature defines W as a function of the batch's correlation matrix."""
    x = features("gaussian", 64, 8).double()
    expected = x @ matrix(x.mT @ x / len(x))
    actual = SpectralFilter(branch, name, **parameters)(x)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("lgo1p", {}, "log1p"),
        ("no_such_module.soft", {}, "no_such_module"),
        ("log1p", {"p": 1.0}, "p=1"),
        ("pow", {}, "exponent"),
        ("pow", {"p": 3.001}, "3.001"),
        ("truncate", {"kept": 3}, "'kept'"),
        ("truncate", {"keep": 0}, "filter.keep"),
        ("shrink", {"rows": 8}, "rows"),
        (lambda sigma: sigma[:8], {}, "8"),
        (lambda sigma, scale: sigma * scale, {}, "'scale'"),
    ],
)
def test_functions_that_cannot_be_filters_are_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        get(name, **options)


@pytest.mark.parametrize(
    ("options", "x", "error"),
    [
        ({"branch": "left"}, SPECTRUM, UserError),
        ({"momentum": 2}, SPECTRUM, UserError),
        ({}, torch.ones(1, 2, 3, 4), UserError),
        ({}, torch.full((4, 8), math.nan), FloatingPointError),
        ({"function": lambda sigma: sigma / 0}, SPECTRUM, UserError),
    ],
)
def test_wrong_options_batches_and_infinite_gains_are_errors(options, x, error):
    with pytest.raises(error):
        SpectralFilter(**options)(x)


def test_a_function_may_return_bools_or_change_its_argument():
    spectrum = decompose(SPECTRUM)
    assert gains(spectrum, get(lambda sigma: sigma > 1.5)).tolist() == [0, 1, 1]
    gains(spectrum, get(torch.Tensor.square_))
    assert spectrum.sigma.tolist() == [1, 2, 4]


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        (torch.float32, 1e-4, 1e15),
        (torch.float16, 1e-3, 1e3),
    ],
)
def test_gains_out_of_range_are_rescaled_by_one_constant(dtype, low, high):
    spectrum = decompose(torch.eye(3, dtype=dtype))
    peaks = {
        low: low,
        0.9999 * low: 1,
        high: high,
        1.0001 * high: 1,
        0: 0,
    }
    for peak, expected in peaks.items():
        gain = torch.full_like(spectrum.sigma, -peak)
        assert rescale(spectrum, gain).tolist() == pytest.approx([-expected] * 3, rel=1e-12)
    tiny = decompose(1e-36 * torch.eye(3))
    gain = rescale(tiny, tiny.sigma.reciprocal())
    assert float(gain.max()) == pytest.approx(1e32)  # in float32's range


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ({"schedule": "linaer", "start": 0, "end": 1}, "linear"),
        ({"schedule": "linear", "start": 0, "end": 1, "epoch": 2}, "epoch"),
        ({"schedule": "linear", "start": 0, "end": 1, "epochs": 0}, "epochs"),
        ({"schedule": "linear", "start": None, "end": 1}, "start"),
        ({"schedule": "linear", "start": 0, "end": 3.001}, "3.001"),
        ({"schedule": "steps", 2: 0.0}, "begin with 1"),
        ({"schedule": "steps", 1: 0.0, 21: 0.5, 11: 0.0}, "rise"),
        ({"schedule": "steps", 1: 0.0, 2.5: 0.0}, "2.5"),
        ({"schedule": "steps", 1: 0.0, "epochs": 3}, "'epochs'"),
        ({"schedule": "steps", 1: 0.0, 11: 3.001}, "3.001"),
    ],
)
def test_a_wrong_schedule_is_refused(schedule, words):
    with pytest.raises(ValueError, match=words):
        as_schedule(schedule, epochs=3)


@pytest.mark.parametrize("mapping", [dict, OmegaConf.create])
def test_p_changes_at_the_beginning_of_the_epochs_that_a_user_counts(mapping):
    steps = as_schedule(mapping({"schedule": "steps", 1: -0.5, 3: 0, 4: -1}))
    assert [steps(epoch) for epoch in range(6)] == [-0.5, -0.5, 0, -1, -1, -1]


def test_a_cosine_schedule_ends_in_its_last_epoch():
    cosine = Schedule("cosine", {1: 0.0, 3: -1.0})
    values = [cosine(epoch) for epoch in range(4)]
    assert values == pytest.approx([0, -0.5, -1, -1])
    at_once = {"schedule": "cosine", "start": 0.0, "end": -1.0}
    assert as_schedule(at_once, epochs=1)(0) == -1.0


def test_a_filter_follows_its_schedule():
    module = SpectralFilter("target", "pow", Schedule("linear", {1: 0.0, 3: -1.0}))
    for epoch, p in enumerate([0.0, -0.5, -1.0, -1.0]):
        module.set_epoch(epoch)
        expected = 4.0 ** (1 + p)
        assert module(SPECTRUM).amax().item() == pytest.approx(expected)
    assert repr(module) == "SpectralFilter(target, pow, p=-1)"
