"""Measures of what is not finite or not symmetric, and very long and short rows."""

import math

import pytest
import torch
from conftest import features
from torch.nn.functional import normalize

from rdm_solo import theory
from rdm_solo.spectra import BranchSpectra, alignment, effective_rank, rankme
from rdm_solo.spectra.rows import unit_rows

LAM = torch.tensor([4.0, 1.0, 0.25], dtype=torch.float64)
V = torch.linalg.qr(features("gaussian", 3, 3).double())[0]
C = (V * LAM) @ V.T


@pytest.mark.parametrize("measure", [effective_rank, rankme])
@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_a_measure_of_what_is_not_finite_is_nan(measure, bad):
    lam = torch.tensor([4.0, bad, 0.25])
    assert measure(lam).isnan()
    lower = C.clone()
    lower[2, 1] = bad
    assert measure(lower).isnan()
    # torch.linalg.eigh does not read the upper triangle.
    assert measure(lower.T).isnan()


@pytest.mark.parametrize("scale", [1e-200, 1.0])
@pytest.mark.parametrize(
    "function",
    [
        effective_rank,
        lambda x: alignment(x, C),
        lambda x: alignment(C, x),
        lambda x: theory.optimal_predictor(x, C),
        lambda x: theory.equivalent_filter(x, C),
        lambda x: theory.equivalent_filter(C, x),
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
    torch.testing.assert_close(effective_rank(x), effective_rank(LAM), rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("dtype", "scale"), [(torch.float64, 1e200), (torch.float64, 1e-200), (torch.float32, 1e-30)]
)
def test_rows_of_any_length_are_scaled_to_one(dtype, scale):
    x = features("1/i", 40, 10).double()
    x[3] = 0  # stays zero
    scaled = (x * scale).to(dtype)
    torch.testing.assert_close(unit_rows(scaled), normalize(x, dim=1), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("options", [{}, {"max_dim": 4, "sample": 64}], ids=["matrices", "sample"])
def test_short_rows_and_rows_of_zeros_are_measured(options):
    x = features("1/i", 40, 10)
    x[3] = 0
    metric = BranchSpectra(10, **options)
    metric.update(x * 1e-30, x * 1e-30)
    scalars = metric.compute().scalars
    metric.reset()
    metric.update(x, x)
    expected = metric.compute().scalars
    # This measure reads rows as they are.
    del scalars["epps_pulley/projection"]
    del expected["epps_pulley/projection"]
    assert scalars == pytest.approx(expected, rel=1e-4)
