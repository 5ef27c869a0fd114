"""Measures of what is no spectrum, and spectra of rows near the ends of each dtype."""

import math

import pytest
import torch
from conftest import features

from rdm_solo import theory
from rdm_solo.spectra import BranchSpectra, alignment, effective_rank, rankme

LAM = torch.tensor([4.0, 1.0, 0.25], dtype=torch.float64)
TURN = torch.linalg.qr(features("gaussian", 3, 3).double())[0]
C = (TURN * LAM) @ TURN.T


@pytest.mark.parametrize("measure", [effective_rank, rankme])
@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_a_measure_of_what_is_not_finite_is_nan(measure, bad):
    lam, matrix = LAM.clone(), C.clone()
    lam[1] = matrix[2, 1] = bad
    upper = C.clone()
    upper[1, 2] = bad  # the triangle that no routine reads
    for what in (lam, matrix, upper, torch.full((3,), bad), torch.tensor([bad])):
        assert measure(what).isnan(), what
    for pair in ((matrix, C), (C, matrix)):
        assert alignment(*pair).isnan()


@pytest.mark.parametrize("scale", [1e-200, 1.0])
def test_a_matrix_that_is_not_symmetric_is_refused_at_any_scale(scale):
    apart = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]).double()
    crooked = (C + 4e-4 * apart) * scale
    for call in (
        lambda: effective_rank(crooked),
        lambda: alignment(crooked, C),
        lambda: alignment(C, crooked),
        lambda: theory.optimal_predictor(crooked, C),
        lambda: theory.equivalent_filter(crooked, C),
        lambda: theory.equivalent_filter(C, crooked),
    ):
        with pytest.raises(ValueError, match="takes a symmetric matrix"):
            call()
    nearly = (C + 1e-6 * apart) * scale
    torch.testing.assert_close(effective_rank(nearly), effective_rank(LAM), rtol=1e-5, atol=0)


ROUTES = {"matrices": {}, "sample": {"max_dim": 4, "sample": 64}}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("dtype", "scale"), [(torch.float64, 1e200), (torch.float64, 1e-200), (torch.float32, 1e-30)]
)
def test_rows_of_any_length_are_scaled_to_one(route, dtype, scale):
    """As if they had come at the length 1; one row is zero, and stays so."""
    parts = [features(kind, 40, 10, seed=i) for i, kind in enumerate(["1/i", "batchnorm", "1/i"])]
    parts[1][3] = 0
    found, want = (BranchSpectra(10, **ROUTES[route]) for _ in range(2))
    found.update(*((part.double() * scale).to(dtype) for part in parts))
    want.update(*(part.double() for part in parts))
    assert int(found.broken) == 0
    scalars, wanted = found.compute().scalars, want.compute().scalars
    raw = "epps_pulley/projection"  # of rows as they come
    assert math.isfinite(scalars.pop(raw))
    assert scalars == pytest.approx(
        {k: v for k, v in wanted.items() if k != raw}, rel=1e-4, abs=1e-6
    )
    assert scalars["feature/variance"] > 0.5
