"""Uniformity and positives' distance; the Epps-Pulley statistic."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.spatial.distance import pdist
from torch.nn.functional import normalize

from rdm_solo.spectra import epps_pulley, mean_share, positive_distance, uniformity
from rdm_solo.spectra.rows import directions


def rows(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows whose spectrum falls at a rate drawn at random, around a mean; and their positives."""
    draw = np.random.default_rng(seed)
    n, k = int(draw.integers(2, 40)), int(draw.integers(2, 30))
    steep = np.arange(1, k + 1) ** -draw.uniform(0, 3)
    x = draw.standard_normal((n, k)) * steep + draw.uniform(0, 3) * draw.standard_normal(k)
    return x, x + draw.uniform(0, 1) * draw.standard_normal((n, k)) * steep


def test_each_measure_of_rows_agrees_with_another_form_on_fuzzed_spectra():
    for seed in range(60):
        x, y = rows(seed)
        unit, other = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (x, y))
        along = directions(x.shape[1], 4, seed).numpy()
        found = {
            "mean_share": mean_share(torch.from_numpy(x)),
            "uniformity": uniformity(torch.from_numpy(unit)),
            "positive_distance": positive_distance(*map(torch.from_numpy, (unit, other))),
            "epps_pulley": epps_pulley(torch.from_numpy(x), 4, seed),
        }
        want = {
            "mean_share": 1 - x.var(0).sum() / np.square(x).sum(1).mean(),
            "uniformity": math.log(np.mean(np.exp(-2 * pdist(unit) ** 2))),
            "positive_distance": 2 - 2 * np.einsum("ij,ij->i", unit, other).mean(),
            "epps_pulley": np.mean([statistic_of(u) for u in (x @ along).T]),
        }
        for name, value in want.items():
            assert float(found[name]) == pytest.approx(value, rel=1e-6, abs=1e-12), (seed, name)


def test_the_share_of_the_mean_of_one_point_of_zeros_and_of_nan():
    assert float(mean_share(torch.ones(5, 3))) == pytest.approx(1, abs=1e-12)
    assert float(mean_share(torch.zeros(5, 3))) == 1
    assert math.isnan(mean_share(torch.full((5, 3), math.nan)))
    with pytest.raises(ValueError, match=r"rows \(N, k\)"):
        mean_share(torch.ones(3))


@pytest.mark.parametrize(("n", "t"), [(512, 2), (513, 0.5), (1300, 0.5)])
def test_uniformity_reads_every_pair_once(n, t):
    x = normalize(torch.randn(n, 7, generator=torch.Generator().manual_seed(n)).double(), dim=1)
    want = math.log(np.mean(np.exp(-t * pdist(x.numpy()) ** 2)))
    assert float(uniformity(x, t)) == pytest.approx(want, rel=1e-9)


def test_uniformity_is_in_float64_where_products_of_float32_may_lose_digits():
    x = normalize(torch.randn(600, 32, generator=torch.Generator().manual_seed(0)), dim=1)
    want = float(uniformity(x.double()))
    assert float(uniformity(x)) != want  # float32 by itself
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        assert float(uniformity(x)) == want
    finally:
        torch.set_float32_matmul_precision(before)


def statistic_of(u: np.ndarray) -> float:
    """Return N times the integral by numpy's trapezoids, which an adaptive one confirms."""

    def integrand(t: float) -> float:
        return abs(np.mean(np.exp(1j * t * u)) - math.exp(-t * t / 2)) ** 2 * math.exp(-t * t / 2)

    t = np.linspace(0, 3, 17)
    value = 2 * float(np.trapezoid([integrand(x) for x in t], t))
    assert value == pytest.approx(2 * quad(integrand, 0, 3)[0], rel=0.02, abs=1e-3)
    return len(u) * value
