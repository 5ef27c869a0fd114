"""Filters by matrix products: the decomposition's results, or the decomposition."""

from __future__ import annotations

import math

import pytest
import torch
from conftest import features
from support.second_device import DEVICE
from support.waits import Waits
from torch.nn.functional import normalize
from torch.utils.flop_counter import FlopCounterMode

from rdm_solo.bench.solvers import with_condition
from rdm_solo.filters import SpectralFilter, decompose, iterations
from rdm_solo.filters.batch import gather

EXPONENTS = sorted(iterations.ROOTS)
SHAPES = [(96, 160), (160, 96)]


def both(x: torch.Tensor, p: float) -> tuple[torch.Tensor, torch.Tensor, bool]:
    """Rows of unit length by products and by the decomposition; whether products were enough."""
    module = SpectralFilter("target", "pow", p, solver="iterative")
    by_products, by_eigh = (f(x).double() for f in (module, SpectralFilter("target", "pow", p)))
    return normalize(by_products), normalize(by_eigh), "fallback" not in module._logged


def in_float64(x: torch.Tensor, p: float) -> tuple[float, bool]:
    """The largest difference of a unit row, before it is rounded to the dtype of x; and whether
    products were enough."""
    batch, gram = gather(x)
    found = iterations.power(batch, gram, p)
    spectrum = decompose(x)
    wanted = (spectrum.vectors * spectrum.sigma**p) @ spectrum.vectors.mT
    rows = (m @ batch.rows if batch.dual else batch.rows @ m for m in (found.matrix, wanted))
    one, other = map(normalize, rows)
    return float(torch.linalg.vector_norm(one - other, dim=1).max()), bool(found.exact)


@pytest.mark.parametrize("p", EXPONENTS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("condition", [1, 10, 100, 1e3, 1e4])
def test_products_give_what_the_decomposition_gives(condition, shape, p):
    found, want, enough = both(with_condition(condition, *shape).float(), p)
    assert enough
    assert (found - want).abs().max() < 1e-5


@pytest.mark.parametrize("p", EXPONENTS)
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        *((kind, torch.float32) for kind in ("gaussian", "1/i", "batchnorm")),
        *((kind, torch.float16) for kind in ("gaussian", "1/i", "batchnorm")),
        *((kind, torch.bfloat16) for kind in ("gaussian", "batchnorm")),
    ],
)
def test_of_features_that_heads_make(kind, dtype, p):
    """A batch norm leaves the direction of the rows' sum at rounding noise."""
    error, enough = in_float64(features(kind, 64, 512).to(dtype), p)
    assert enough
    assert error < (1e-5 if dtype == torch.float32 else torch.finfo(dtype).eps / 4)


def spoilt(x: torch.Tensor, row: float) -> torch.Tensor:
    return x.masked_fill(torch.arange(len(x))[:, None] == 5, row)


HOSTILE = {
    "a row of NaN": lambda x: spoilt(x, math.nan),
    "a row of zeros": lambda x: spoilt(x, 0.0),
    "repeated rows": lambda x: x.repeat(2, 1)[: len(x)][torch.arange(len(x)) // 2],
    "collapsed": lambda x: x[:1].expand(len(x), -1) + 1e-6 * x,
    "zero": torch.zeros_like,
    "huge": lambda x: x * 1e20,
    "tiny": lambda x: x * 1e-20,
    "steep": lambda x: features("1/i^2", 512, 600),
}


@pytest.mark.parametrize("p", EXPONENTS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("batch", HOSTILE)
def test_what_products_cannot_do_is_decomposed(batch, shape, p):
    found, want, enough = both(HOSTILE[batch](features("gaussian", *shape)), p)
    if "a row" in batch and shape[0] > shape[1]:  # the others fill all directions
        assert enough
        assert (found - want).abs().max() < 1e-5
        return
    assert not enough
    torch.testing.assert_close(found, want, rtol=0, atol=0)


def with_least(x: torch.Tensor, number: float, direction: torch.Tensor | None) -> torch.Tensor:
    """Equal singular values but for one, that of a given left singular vector if one is given."""
    u, _, vh = torch.linalg.svd(x.double(), full_matrices=False)
    if direction is not None:
        u[:, -1] = direction.double()
        u = torch.linalg.qr(u.flip(1))[0].flip(1)
    sigma = torch.ones(u.shape[1], dtype=torch.float64)
    sigma[-1] = number
    return ((u * sigma) @ vh).float()


@pytest.mark.parametrize("p", EXPONENTS)
@pytest.mark.parametrize("of_sum", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_result_that_is_accepted_is_right_whatever_the_least_direction(shape, of_sum, p):
    """One direction from far above the cut to far below, where a filter's gain is zero; any, or
    that of the rows' sum, which is taken out where it is noise."""
    accepted = []
    ones = torch.ones(shape[0]) if of_sum else None
    for number in torch.logspace(-7, 0, 80, dtype=torch.float64).tolist():
        x = with_least(features("gaussian", *shape), number, ones)
        error, enough = in_float64(x, p)
        assert error < 1e-5 or not enough, number
        accepted.append(enough)
    assert 40 <= sum(accepted) < 80
    assert accepted[0] == (of_sum and shape[0] < shape[1])
    assert not all(accepted)
    assert all(accepted[50:])


@pytest.mark.parametrize("p", EXPONENTS)
@pytest.mark.parametrize("lean", [0.0, 1e-5, 1e-3, 0.1])
def test_a_null_direction_that_is_only_near_the_rows_sum(lean, p):
    """Where it leans towards a small direction, taking out the sum would be something else."""
    n = 96
    u, _, vh = torch.linalg.svd(features("gaussian", n, 160).double(), full_matrices=False)
    ones = torch.ones(n, 1, dtype=torch.float64)
    u = torch.linalg.qr(torch.cat([ones, u[:, 1:]], 1))[0].flip(1)  # the sum comes last
    small, null = u[:, -2].clone(), u[:, -1].clone()
    u[:, -2], u[:, -1] = (small - lean * null), (null + lean * small)
    u /= torch.linalg.vector_norm(u, dim=0)
    sigma = torch.ones(n, dtype=torch.float64)
    sigma[-2:] = torch.tensor([1e-4, 3e-7])
    x = ((u * sigma) @ vh).float()
    error, enough = in_float64(x, p)
    assert error < 1e-5 or not enough
    assert enough == (lean < (1e-4 if p == -1 else 1e-2))


@pytest.mark.parametrize(("p", "most"), [(-1.0, 51), (-0.5, 56)])
def test_how_many_products_it_takes(p, most):
    """Beside the Gram matrix and the filter itself; of 96 rows, 2 * 96^3 operations each."""
    module = SpectralFilter("target", "pow", p, solver="iterative")
    x = with_condition(10, 96, 160).float()
    with FlopCounterMode(display=False) as counter:
        module(x)
    own = counter.get_total_flops() - 2 * (2 * 96 * 96 * 160)
    assert math.floor(own / (2 * 96**3)) == most  # and a few products with vectors


def test_a_polynomial_is_the_best_of_its_kind():
    """Its distance from 1 is the same at four points, with alternating signs."""
    for low, r in ((1e-3, 2), (1e-6, 4)):
        a, b, c, error = iterations.best(low, r)
        s = torch.logspace(math.log10(low), 0, 20001, dtype=torch.float64)
        off = 1 - s * (a + b * s**r + c * s ** (2 * r))
        assert off.abs().max() == pytest.approx(error, rel=1e-6)
        turns = off[off.abs() > error * (1 - 1e-4)].sign()
        assert int((turns.diff() != 0).sum()) == 3


def waited(p: float, x: torch.Tensor) -> list[str]:
    module, x = SpectralFilter("target", "pow", p, solver="iterative"), x.to(DEVICE)
    with Waits() as waits:
        module(x)
    return [wait.operator for wait in waits.found]


@pytest.mark.parametrize("p", EXPONENTS)
def test_a_device_is_waited_for_once_or_where_it_is_decomposed_twice(on_second_device, p):
    x = features("gaussian", 24, 40)
    assert on_second_device(waited, p, x) == ["_local_scalar_dense"]
    repeated = x[torch.arange(24) // 2]
    assert on_second_device(waited, p, repeated) == ["_local_scalar_dense", "_linalg_eigh"]


@pytest.mark.parametrize(
    ("branch", "function", "p"),
    [
        ("online", "pow", -0.5),
        ("target", "log1p", None),
        ("target", "pow", -0.7),
        ("target", "pow", {"schedule": "linear", "start": -0.5, "end": -1, "epochs": 9}),
    ],
)
def test_what_it_is_not_for_is_refused(branch, function, p):
    with pytest.raises(ValueError, match=r"pow of the target branch with p=-1 or p=-0\.5, got"):
        SpectralFilter(branch, function, p, solver="iterative")


def test_another_solver_is_refused():
    with pytest.raises(ValueError, match="must be 'eigh' or 'iterative', got 'svd'"):
        SpectralFilter("target", "pow", -0.5, solver="svd")
