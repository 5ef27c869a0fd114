"""Measures of rank against other forms of their definitions, on random spectra and rows."""

import math

import numpy as np
import pytest
import torch
from conftest import features
from scipy.linalg import eigh
from support.branches import random_views

from rdm_solo.spectra import (
    BranchSpectra,
    alpha_req,
    correlation,
    effective_rank,
    lidar,
    nesum,
    participation_ratio,
    rankme,
    stable_rank,
)

CLOSE = 1e-6
SEEDS = range(200)


def random_spectrum(seed: int) -> np.ndarray:
    """Draw a descending spectrum of one of five kinds, at a scale from 1e-15 to 1e15."""
    draw = np.random.default_rng(seed)
    k = int(draw.integers(14, 200))
    i = np.arange(1, k + 1)
    step = i <= draw.integers(1, k)
    kinds = [
        i ** -draw.uniform(0, 4),
        np.exp(-i * draw.uniform(0, 0.3)),
        np.where(step, 1.0, draw.uniform(1e-9, 1e-2)),
        np.where(step, draw.uniform(0.5, 1, k), 0.0),
        draw.exponential(size=k),
    ]
    lam = kinds[seed % len(kinds)]
    lam = np.sort(lam)[::-1]
    return lam * 10.0 ** draw.uniform(-15, 15)


def entropy_rank(p: np.ndarray) -> float:
    """Return a product of powers; the measures have a sum of logarithms."""
    p = p[p > 0].astype(np.longdouble)
    return float(np.prod(p**-p))


def above_noise(lam: np.ndarray) -> np.ndarray:
    eps = np.finfo(float).eps
    return lam[lam > lam.max() * len(lam) * eps]


def test_each_measure_agrees_with_another_form():
    for seed in SEEDS:
        lam = random_spectrum(seed)
        q = lam / lam.sum()
        frobenius = np.linalg.norm(np.sqrt(lam))
        signal = np.sqrt(above_noise(lam))
        share = np.zeros(len(lam))
        share[: len(signal)] = signal / signal.sum()
        expected = {
            effective_rank: entropy_rank(q),
            rankme: entropy_rank(share + 1e-7),
            stable_rank: frobenius**2 / lam[0],
            participation_ratio: 1 / np.sum(q**2),
            nesum: np.mean(lam / lam[0]) * len(lam),
        }
        for measure, value in expected.items():
            actual = measure(torch.from_numpy(lam)).item()
            assert actual == pytest.approx(value, rel=CLOSE), (seed, measure)


def test_alpha_req_is_numpys_weighted_fit():
    for seed in SEEDS:
        lam = random_spectrum(seed)
        alpha, r2 = alpha_req(torch.from_numpy(lam))
        last = min(100, len(above_noise(lam)))
        if last < 13:
            assert alpha.isnan()
            assert r2.isnan()
            continue
        i = np.arange(11, last + 1)
        x = np.log(i)
        y = np.log(lam[10:last])
        if np.ptp(y) < 1e-9:
            continue  # R^2 would be 0 / 0
        # NumPy's weights are those of the residuals, not of their squares.
        slope, offset = np.polyfit(x, y, 1, w=i**-0.5)
        residuals = y - slope * x - offset
        expected_r2 = 1 - np.mean(residuals**2) / np.var(y)
        actual = [alpha.item(), r2.item()]
        expected = [-slope, expected_r2]
        assert actual == pytest.approx(expected, rel=CLOSE, abs=CLOSE)


@pytest.mark.parametrize(
    "measure",
    [
        effective_rank,
        rankme,
        stable_rank,
        participation_ratio,
        nesum,
    ],
)
def test_flat_spectra_one_direction_nothing_and_nan(measure):
    lam = torch.full((40,), 1e-30)
    assert measure(lam).item() == pytest.approx(40, rel=1e-4)
    lam[1:] = 0
    assert measure(lam).item() == pytest.approx(1, rel=1e-4)
    lam[0] = 0
    assert measure(lam) == 0
    for bad in (math.nan, -math.inf):
        lam[1] = bad
        assert measure(lam).isnan()


@pytest.mark.parametrize(
    ("n", "k"),
    [
        (20, 64),
        (64, 20),
        (20, 20),
    ],
)
def test_rankme_has_a_term_for_each_of_min_n_k_singular_values(n, k):
    left = features("gaussian", n, 5).double()
    x = left @ features("gaussian", 5, k).double()
    sigma = np.linalg.svd(x, compute_uv=False)
    sigma[5:] = 0
    share = sigma / sigma.sum()
    expected = pytest.approx(entropy_rank(share + 1e-7), rel=1e-12)
    assert rankme(correlation(x), rows=n).item() == expected
    metric = BranchSpectra(k, normalize=False)
    metric.update(x, x)
    spectra = metric.compute()
    assert spectra.scalars["rankme/target"] == expected


@pytest.mark.parametrize("measure", [nesum, alpha_req])
def test_measures_of_a_covariance_refuse_eigenvalues_in_another_order(measure):
    with pytest.raises(ValueError, match="descending"):
        measure(torch.arange(40.0))


def lidar_by_definition(x: np.ndarray) -> float:
    """Compute LiDAR from NumPy's covariance, and the eigenvalues by scipy's generalised problem."""
    n, q, k = x.shape
    means = x.mean(1)
    rows = (x - means[:, None]).reshape(n * q, k)
    S_b = np.cov(means.T)
    S_w = 1e-4 * np.eye(k) + rows.T @ rows / (n * (q - 1))
    lam = eigh(S_b, S_w, eigvals_only=True)
    lam = lam.clip(0) + 1e-8
    return entropy_rank(lam / lam.sum())


def test_lidar_is_its_definition():
    for seed in range(100):
        draw = np.random.default_rng(seed)
        sizes = draw.integers(2, [60, 5, 40])
        n, q, k = sizes.tolist()
        scale = 10 ** draw.uniform(-1, 2)
        steepness = draw.uniform(0, 2)
        views = scale * random_views(n, q, k, seed, steepness)
        expected = lidar_by_definition(views.numpy())
        assert lidar(views).item() == pytest.approx(expected, rel=CLOSE)


def test_lidar_of_collapsed_views_is_zero():
    noise = torch.randn(50, 2, 8, dtype=torch.float64)
    assert lidar(1 + 1e-9 * noise) == 0


@pytest.mark.parametrize("scale", [math.nan, 1e9])
def test_lidar_is_undefined_for_nan_and_if_rounding_exceeds_delta(scale):
    """Large features with few directions have no Cholesky factor."""
    views = random_views(30, 2, 20, seed=0, steepness=0)
    views[..., 3:] = 0
    views[..., 3] = views[..., 2] + views[..., 1]
    assert lidar(scale * views).isnan()
