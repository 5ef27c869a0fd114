"""Measures of what is not finite or not symmetric, and very long and short rows."""

import math

import pytest
import torch
from conftest import features
from torch.nn.functional import normalize

from rdm_solo.spectra import BranchSpectra, alignment, effective_rank
from rdm_solo.spectra.rows import unit_rows
from rdm_solo.theory import equivalent_filter, optimal_predictor

LAM = torch.tensor([4.0, 1.0, 0.25], dtype=torch.float64)
V, _ = torch.linalg.qr(features("gaussian", 3, 3).double())
C = (V * LAM) @ V.T


def test_the_rank_of_a_matrix_that_is_not_finite_is_nan():
    lower = C.clone()
    lower[2, 1] = math.nan
    assert effective_rank(lower).isnan()
    # torch.linalg.eigh does not read the upper triangle.
    assert effective_rank(lower.T).isnan()


@pytest.mark.parametrize("scale", [1e-200, 1.0])
@pytest.mark.parametrize(
    "function",
    [
        effective_rank,
        lambda x: alignment(x, C),
        lambda x: alignment(C, x),
        lambda x: optimal_predictor(x, C),
        lambda x: equivalent_filter(x, C),
        lambda x: equivalent_filter(C, x),
    ],
)
def test_a_matrix_that_is_not_symmetric_is_refused_at_any_scale(function, scale):
    x = C.clone()
    x[0, 1] += 4e-4
    with pytest.raises(ValueError, match="symmetric"):
        function(x * scale)


def test_a_matrix_may_have_rounding_errors():
    x = C.clone()
    x[0, 1] += 1e-6
    expected = effective_rank(LAM).item()
    assert effective_rank(x).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("scale", [1e200, 1e-200])
def test_float64_rows_of_any_length_are_scaled_to_one(scale):
    x = features("1/i", 40, 10).double()
    x[3] = 0  # stays zero
    expected = normalize(x, dim=1)
    torch.testing.assert_close(unit_rows(x * scale), expected)


@pytest.mark.parametrize("max_dim", [4, 10], ids=["sample", "matrices"])
def test_short_rows_and_rows_of_zeros_are_measured(max_dim):
    rows = features("1/i", 40, 10)
    rows[3] = 0
    results = []
    for x in (rows, rows * 1e-30):
        metric = BranchSpectra(10, max_dim=max_dim)
        metric.update(x, x)
        scalars = metric.compute().scalars
        del scalars["epps_pulley/projection"]  # reads rows as they are
        results.append(scalars)
    expected, actual = results
    assert actual == pytest.approx(expected, rel=1e-4)
