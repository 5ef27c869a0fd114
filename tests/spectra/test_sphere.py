"""Measures of rows: their mean, uniformity, positives' distance, and the Epps-Pulley statistic."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.spatial.distance import pdist
from torch.nn.functional import normalize

from rdm_solo.spectra import epps_pulley, mean_share, positive_distance, uniformity
from rdm_solo.spectra.rows import directions


def random_rows(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw rows with a falling spectrum around a mean, and their positives."""
    draw = np.random.default_rng(seed)
    n, k = int(draw.integers(2, 40)), int(draw.integers(2, 30))
    scale = np.arange(1, k + 1) ** -draw.uniform(0, 3)
    mean = draw.uniform(0, 3) * draw.standard_normal(k)
    x = draw.standard_normal((n, k)) * scale + mean
    noise = draw.standard_normal((n, k)) * scale
    return x, x + draw.uniform(0, 1) * noise


def expected_uniformity(x: np.ndarray, t: float = 2) -> float:
    return math.log(np.mean(np.exp(-t * pdist(x) ** 2)))


def expected_statistic(u: np.ndarray) -> float:
    """Return N times the integral by NumPy's trapezoids, checked against an adaptive rule."""

    def integrand(t: float) -> float:
        normal = math.exp(-t * t / 2)
        return abs(np.mean(np.exp(1j * t * u)) - normal) ** 2 * normal

    t = np.linspace(0, 3, 17)
    values = [integrand(x) for x in t]
    integral = 2 * float(np.trapezoid(values, t))
    assert integral == pytest.approx(2 * quad(integrand, 0, 3)[0], rel=0.02, abs=1e-3)
    return len(u) * integral


def test_each_measure_of_rows_agrees_with_another_form():
    for seed in range(60):
        x, y = random_rows(seed)
        unit_x = x / np.linalg.norm(x, axis=1, keepdims=True)
        unit_y = y / np.linalg.norm(y, axis=1, keepdims=True)
        projections = x @ directions(x.shape[1], 4, seed).numpy()
        actual = [
            mean_share(torch.from_numpy(x)),
            uniformity(torch.from_numpy(unit_x)),
            positive_distance(torch.from_numpy(unit_x), torch.from_numpy(unit_y)),
            epps_pulley(torch.from_numpy(x), 4, seed),
        ]
        expected = [
            1 - x.var(0).sum() / np.square(x).sum(1).mean(),
            expected_uniformity(unit_x),
            2 - 2 * np.einsum("ij,ij->i", unit_x, unit_y).mean(),
            np.mean([expected_statistic(u) for u in projections.T]),
        ]
        assert [float(x) for x in actual] == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_the_share_of_the_mean_of_one_point_of_zeros_and_of_nan():
    assert float(mean_share(torch.ones(5, 3))) == pytest.approx(1, abs=1e-12)
    assert float(mean_share(torch.zeros(5, 3))) == 1
    assert math.isnan(mean_share(torch.full((5, 3), math.nan)))


@pytest.mark.parametrize(("n", "t"), [(512, 2), (513, 0.5), (1300, 0.5)])
def test_uniformity_reads_every_pair_once(n, t):
    rng = torch.Generator().manual_seed(n)
    x = normalize(torch.randn(n, 7, generator=rng).double(), dim=1)
    expected = expected_uniformity(x.numpy(), t)
    assert float(uniformity(x, t)) == pytest.approx(expected, rel=1e-9)


def test_uniformity_is_in_float64_if_products_of_float32_may_lose_digits():
    x = normalize(torch.randn(600, 32, generator=torch.Generator().manual_seed(0)), dim=1)
    expected = float(uniformity(x.double()))
    assert float(uniformity(x)) != expected
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        assert float(uniformity(x)) == expected
    finally:
        torch.set_float32_matmul_precision(precision)
