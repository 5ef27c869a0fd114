"""Filters by matrix products: the decomposition's results, or the decomposition itself."""

from __future__ import annotations

import math

import pytest
import torch
from conftest import features
from support.second_device import DEVICE
from support.waits import Waits
from torch.nn.functional import normalize

from rdm_solo.filters import SpectralFilter, decompose, iterations
from rdm_solo.filters.batch import gather

EXPONENTS = sorted(iterations.ROOTS)
SHAPES = [(96, 160), (160, 96)]


def with_spectrum(x: torch.Tensor, sigma: torch.Tensor, last: torch.Tensor | None = None):
    """Return x with other singular values, and with a given last left singular vector."""
    u, _, vh = torch.linalg.svd(x.double(), full_matrices=False)
    if last is not None:
        u[:, -1] = last.double()
        u = torch.linalg.qr(u.flip(1))[0].flip(1)
    return ((u * sigma) @ vh).float()


def compare(x: torch.Tensor, p: float) -> tuple[float, bool]:
    """Return the largest error of a unit row before rounding, and whether it was accepted."""
    batch, gram = gather(x)
    products, spectrum = iterations.power(batch, gram, p), decompose(x)
    wanted = (spectrum.vectors * spectrum.sigma**p) @ spectrum.vectors.mT
    rows = (m @ batch.rows if batch.dual else batch.rows @ m for m in (products.matrix, wanted))
    one, other = map(normalize, rows)
    return float(torch.linalg.vector_norm(one - other, dim=1).max()), bool(products.accurate)


@pytest.mark.parametrize("p", EXPONENTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["gaussian", "1/i", "batchnorm"])
def test_features_that_heads_make_are_accepted(kind, dtype, p):
    """A batch norm leaves the direction of the rows' sum at rounding noise."""
    error, accepted = compare(features(kind, 64, 512).to(dtype), p)
    assert accepted or (kind, dtype) == ("1/i", torch.bfloat16)  # its tail is below the cut
    assert error < (1e-5 if dtype == torch.float32 else torch.finfo(dtype).eps / 4) or not accepted


DECOMPOSED = {
    "a row of NaN": lambda x: x.masked_fill(torch.arange(len(x))[:, None] == 5, math.nan),
    "a row of zeros": lambda x: x.masked_fill(torch.arange(len(x))[:, None] == 5, 0.0),
    "repeated rows": lambda x: x[torch.arange(len(x)) // 2],
    "collapsed": lambda x: x[:1].expand(len(x), -1) + 1e-6 * x,
    "zero": torch.zeros_like,
    "huge": lambda x: x * 1e20,
    "tiny": lambda x: x * 1e-20,
}


@pytest.mark.parametrize("p", EXPONENTS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("batch", DECOMPOSED)
def test_what_products_cannot_do_is_decomposed(batch, shape, p):
    x = DECOMPOSED[batch](features("gaussian", *shape))
    module = SpectralFilter("target", "pow", p, solver="iterative")
    got, want = module(x), SpectralFilter("target", "pow", p)(x)
    full = "a row" in batch and shape[0] > shape[1]  # the other rows fill all directions
    assert module.fell_back is not full
    atol = 1e-5 * float(want.abs().max()) if full else 0
    torch.testing.assert_close(got, want, rtol=0, atol=atol)


@pytest.mark.parametrize("p", EXPONENTS)
@pytest.mark.parametrize("of_sum", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_an_accepted_result_is_right_whatever_the_least_direction(shape, of_sum, p):
    """One direction (any, or the rows' sum) from far above the cut to far below."""
    accepted = []
    for least in torch.logspace(-7, 0, 29, dtype=torch.float64):
        sigma = torch.ones(96, dtype=torch.float64)
        sigma[-1] = least
        x = with_spectrum(
            features("gaussian", *shape), sigma, torch.ones(shape[0]) if of_sum else None
        )
        error, exact = compare(x, p)
        assert error < 1e-5 or not exact, least
        accepted.append(exact)
    assert accepted[0] == (of_sum and shape[0] < shape[1])
    assert not all(accepted)
    assert all(accepted[18:])


@pytest.mark.parametrize("p", EXPONENTS)
@pytest.mark.parametrize("lean", [0.0, 1e-5, 1e-3, 0.1])
def test_a_null_direction_that_is_only_near_the_rows_sum(lean, p):
    """If it leans towards a small direction, removing the sum would change rows."""
    u, _, vh = torch.linalg.svd(features("gaussian", 96, 160).double(), full_matrices=False)
    ones = torch.ones(96, 1, dtype=torch.float64)
    u = torch.linalg.qr(torch.cat([ones, u[:, 1:]], 1))[0].flip(1)  # the sum comes last
    small, null = u[:, -2].clone(), u[:, -1].clone()
    u[:, -2], u[:, -1] = (small - lean * null), (null + lean * small)
    u /= torch.linalg.vector_norm(u, dim=0)
    sigma = torch.ones(96, dtype=torch.float64)
    sigma[-2:] = torch.tensor([1e-4, 3e-7])
    error, accepted = compare(((u * sigma) @ vh).float(), p)
    assert error < 1e-5 or not accepted
    assert accepted == (lean < (1e-4 if p == -1 else 1e-2))


def waits_of(p: float, x: torch.Tensor) -> list[str]:
    module, x = SpectralFilter("target", "pow", p, solver="iterative"), x.to(DEVICE)
    with Waits() as waits:
        module(x)
    return [wait.operator for wait in waits.found]


def test_a_device_is_waited_for_once_or_twice_if_it_falls_back(on_second_device):
    x = features("gaussian", 24, 40)
    assert on_second_device(waits_of, -1, x) == ["_local_scalar_dense"]
    repeated = x[torch.arange(24) // 2]
    assert on_second_device(waits_of, -1, repeated) == ["_local_scalar_dense", "_linalg_eigh"]


SCHEDULE = {"schedule": "linear", "start": -0.5, "end": -1, "epochs": 9}


@pytest.mark.parametrize(
    ("branch", "function", "p", "solver"),
    [
        ("online", "pow", -0.5, "iterative"),
        ("target", "log1p", None, "iterative"),
        ("target", "pow", SCHEDULE, "iterative"),
        ("target", "pow", -0.5, "svd"),
    ],
)
def test_other_filters_and_solvers_are_refused(branch, function, p, solver):
    with pytest.raises(ValueError, match="solver"):
        SpectralFilter(branch, function, p, solver=solver)
