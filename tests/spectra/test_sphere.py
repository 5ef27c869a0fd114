"""Measures of rows: their mean, uniformity, positives' distance, and the Epps-Pulley statistic."""

import math

import numpy as np
import pytest
import torch
from conftest import features
from scipy.spatial.distance import pdist
from torch import Tensor
from torch.nn.functional import normalize

from rdm_solo.spectra import epps_pulley, mean_share, positive_distance, uniformity
from rdm_solo.spectra.rows import directions


def expected_uniformity(x: Tensor, t: float = 2) -> float:
    unit_x = normalize(x, dim=1)
    squared_distances = pdist(unit_x) ** 2
    kernel = np.exp(-t * squared_distances)
    return math.log(kernel.mean())


def test_measures_of_rows_agree_with_other_forms():
    rows = features("1/i", 40, 7).double() + 0.5
    x = rows.numpy()
    variance = x.var(0).sum()
    second_moment = np.sum(x**2) / 40
    share = 1 - variance / second_moment
    assert mean_share(rows).item() == pytest.approx(share)
    positives = rows + features("gaussian", 40, 7, seed=1)
    cosines = torch.cosine_similarity(rows, positives)
    distance = 2 - 2 * cosines.mean().item()
    assert positive_distance(rows, positives).item() == pytest.approx(distance)


def test_the_epps_pulley_statistic_is_the_mean_integral_over_directions():
    x = features("1/i", 40, 7) + 0.5
    u = x.double() @ directions(7)
    t = torch.linspace(0, 3, 17, dtype=torch.float64)
    normal = torch.exp(-(t**2) / 2)
    waves = torch.exp(1j * u[..., None] * t)
    errors = waves.mean(0) - normal
    integrand = errors.abs() ** 2 * normal
    integrals = 2 * torch.trapezoid(integrand, t)
    expected = 40 * integrals.mean().item()
    assert epps_pulley(x).item() == pytest.approx(expected, rel=1e-9)


def test_the_share_of_the_mean_of_one_point_of_zeros_and_of_nan():
    ones = torch.ones(5, 3)
    assert mean_share(ones).item() == pytest.approx(1, abs=1e-12)
    assert mean_share(0 * ones) == 1
    assert mean_share(math.nan * ones).isnan()


@pytest.mark.parametrize(
    ("n", "t"),
    [
        (2, 2),
        (512, 2),
        (513, 0.5),
        (1300, 0.5),
    ],
)
def test_uniformity_reads_every_pair_once(n, t):
    x = features("gaussian", n, 7).double()
    expected = expected_uniformity(x, t)
    assert uniformity(x, t).item() == pytest.approx(expected, rel=1e-9)


def test_uniformity_is_in_float64_if_products_of_float32_may_lose_digits():
    x = features("gaussian", 600, 32)
    expected = expected_uniformity(x.double())
    expected = pytest.approx(expected, rel=1e-8)
    assert uniformity(x).item() != expected
    torch.set_float32_matmul_precision("high")
    try:
        assert uniformity(x).item() == expected
    finally:
        torch.set_float32_matmul_precision("highest")
