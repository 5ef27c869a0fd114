"""Measures of rows: their mean, uniformity, positives' distance, and the Epps-Pulley statistic."""

import math

import numpy as np
import pytest
import torch
from conftest import features
from scipy.integrate import quad
from scipy.spatial.distance import pdist
from torch.nn.functional import normalize

from rdm_solo.spectra import epps_pulley, mean_share, positive_distance, uniformity
from rdm_solo.spectra.rows import directions


def expected_uniformity(unit_x: np.ndarray, t: float = 2) -> float:
    kernel = np.exp(-t * pdist(unit_x) ** 2)
    return math.log(kernel.mean())


@pytest.mark.parametrize(("n", "k"), [(2, 5), (40, 7), (30, 30)])
def test_measures_of_rows_agree_with_other_forms(n, k):
    rows = features("1/i", n, k).double() + 0.5
    positives = rows + features("gaussian", n, k, seed=1)
    x = rows.numpy()
    unit_x = normalize(rows, dim=1).numpy()
    unit_y = normalize(positives, dim=1).numpy()
    cosines = np.sum(unit_x * unit_y, axis=1)
    share = 1 - x.var(0).sum() / np.square(x).sum(1).mean()
    assert mean_share(rows).item() == pytest.approx(share)
    assert uniformity(rows).item() == pytest.approx(expected_uniformity(unit_x))
    distance = 2 - 2 * cosines.mean()
    assert positive_distance(rows, positives).item() == pytest.approx(distance)


def test_the_epps_pulley_statistic_is_the_mean_integral_over_directions():
    x = features("1/i", 40, 7) + 0.5
    u = x.double() @ directions(7)
    t = torch.linspace(0, 3, 17, dtype=torch.float64)
    normal = (-(t**2) / 2).exp()
    waves = torch.exp(1j * u[..., None] * t).mean(0)
    integrand = (waves - normal).abs() ** 2 * normal
    integrals = 2 * torch.trapezoid(integrand, t)
    expected = 40 * integrals.mean()
    assert epps_pulley(x).item() == pytest.approx(expected.item(), rel=1e-9)


def test_17_points_suffice_for_the_integral():
    """For the point mass at u = 1, 17 points must agree with an adaptive rule."""

    def integrand(t: float) -> float:
        normal = math.exp(-t * t / 2)
        return abs(np.exp(1j * t) - normal) ** 2 * normal

    expected = 2 * quad(integrand, 0, 3)[0]
    assert epps_pulley(torch.ones(1, 1)).item() == pytest.approx(expected, rel=0.01)


def test_the_share_of_the_mean_of_one_point_of_zeros_and_of_nan():
    assert mean_share(torch.ones(5, 3)).item() == pytest.approx(1, abs=1e-12)
    assert mean_share(torch.zeros(5, 3)) == 1
    assert mean_share(torch.full((5, 3), math.nan)).isnan()


@pytest.mark.parametrize(("n", "t"), [(512, 2), (513, 0.5), (1300, 0.5)])
def test_uniformity_reads_every_pair_once(n, t):
    x = features("gaussian", n, 7).double()
    unit_x = normalize(x, dim=1).numpy()
    assert uniformity(x, t).item() == pytest.approx(expected_uniformity(unit_x, t), rel=1e-9)


def test_uniformity_is_in_float64_if_products_of_float32_may_lose_digits():
    x = normalize(features("gaussian", 600, 32), dim=1)
    expected = pytest.approx(expected_uniformity(x.double().numpy()), rel=1e-8)
    assert uniformity(x).item() != expected
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        assert uniformity(x).item() == expected
    finally:
        torch.set_float32_matmul_precision(precision)
