"""Measures of what is not finite or not symmetric, and spectra of very long and short rows."""

import math

import pytest
import torch
from conftest import features

from rdm_solo import theory
from rdm_solo.spectra import BranchSpectra, alignment, effective_rank, rankme

LAM = torch.tensor([4.0, 1.0, 0.25], dtype=torch.float64)
V = torch.linalg.qr(features("gaussian", 3, 3).double())[0]
C = (V * LAM) @ V.T


@pytest.mark.parametrize("measure", [effective_rank, rankme])
@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_a_measure_of_what_is_not_finite_is_nan(measure, bad):
    lam = LAM.clone()
    lam[1] = bad
    lower, upper = C.clone(), C.clone()
    lower[2, 1] = bad
    upper[1, 2] = bad  # torch.linalg.eigh does not read this triangle
    for x in (lam, lower, upper, torch.tensor([bad])):
        assert measure(x).isnan(), x
    assert alignment(lower, C).isnan()
    assert alignment(C, lower).isnan()


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
    difference = torch.zeros_like(C)
    difference[0, 1] = 1
    with pytest.raises(ValueError, match="symmetric"):
        function((C + 4e-4 * difference) * scale)
    rank = effective_rank((C + 1e-6 * difference) * scale)
    torch.testing.assert_close(rank, effective_rank(LAM), rtol=1e-5, atol=0)


@pytest.mark.parametrize("options", [{}, {"max_dim": 4, "sample": 64}], ids=["matrices", "sample"])
@pytest.mark.parametrize(
    ("dtype", "scale"), [(torch.float64, 1e200), (torch.float64, 1e-200), (torch.float32, 1e-30)]
)
def test_rows_of_any_length_are_scaled_to_one(options, dtype, scale):
    parts = [
        features("1/i", 40, 10),
        features("batchnorm", 40, 10, seed=1),
        features("1/i", 40, 10, seed=2),
    ]
    parts[1][3] = 0  # stays zero
    scaled, original = BranchSpectra(10, **options), BranchSpectra(10, **options)
    scaled.update(*[(x.double() * scale).to(dtype) for x in parts])
    original.update(*[x.double() for x in parts])
    assert int(scaled.broken) == 0
    scalars, expected = scaled.compute().scalars, original.compute().scalars
    # This measure reads rows as they are.
    assert math.isfinite(scalars.pop("epps_pulley/projection"))
    del expected["epps_pulley/projection"]
    assert scalars == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert scalars["feature/variance"] > 0.5
