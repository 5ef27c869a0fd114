"""Measures of rank against other forms of their definitions, on random spectra and rows."""

import math

import numpy as np
import pytest
import torch
from scipy.linalg import eigh, sqrtm
from torch import Tensor

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
from rdm_solo.spectra.rows import discriminant_eigenvalues, pair_scatter, view_scatter

CLOSE = 1e-6


def random_spectrum(seed: int) -> np.ndarray:
    """Draw a descending spectrum of one of five kinds, at a scale from 1e-15 to 1e15."""
    draw = np.random.default_rng(seed)
    k = int(draw.integers(14, 200))
    i = np.arange(1, k + 1)
    kinds = [
        i ** -draw.uniform(0, 4),
        np.exp(-i * draw.uniform(0, 0.3)),
        np.where(i <= draw.integers(1, k), 1.0, draw.uniform(1e-9, 1e-2)),
        draw.exponential(size=k),
        np.where(i <= draw.integers(1, k), draw.uniform(0.5, 1, k), 0.0),
    ]
    lam = kinds[seed % len(kinds)]
    return np.sort(lam)[::-1] * 10.0 ** draw.uniform(-15, 15)


def entropy_rank(p: np.ndarray) -> float:
    """Return a product of powers; the measures have a sum of logarithms."""
    p = p[p > 0].astype(np.longdouble)
    return float(np.prod(p**-p))


def above_noise(lam: np.ndarray) -> np.ndarray:
    return lam[lam > lam.max() * len(lam) * np.finfo(float).eps]


def test_each_measure_agrees_with_another_form():
    for seed in range(200):
        lam = random_spectrum(seed)
        sigma = np.sqrt(lam)
        signal = np.sqrt(above_noise(lam))
        share = np.zeros(len(lam))
        share[: len(signal)] = signal / signal.sum()
        expected = {
            effective_rank: entropy_rank(lam / lam.sum()),
            rankme: entropy_rank(share + 1e-7),
            stable_rank: np.linalg.norm(sigma) ** 2 / np.linalg.norm(sigma, np.inf) ** 2,
            participation_ratio: 1 / np.sum((lam / lam.sum()) ** 2),
            nesum: np.mean(lam / lam[0]) * len(lam),
        }
        for measure, value in expected.items():
            assert float(measure(torch.from_numpy(lam))) == pytest.approx(value, rel=CLOSE), (
                seed,
                measure,
            )


def test_alpha_req_is_numpys_weighted_fit():
    for seed in range(200):
        lam = random_spectrum(seed)
        alpha, r2 = map(float, alpha_req(torch.from_numpy(lam)))
        last = min(100, len(above_noise(lam)))
        if last < 13:
            assert math.isnan(alpha)
            assert math.isnan(r2)
            continue
        i = np.arange(11, last + 1)
        x, y = np.log(i), np.log(lam[10:last])
        if np.ptp(y) < 1e-9:
            continue  # R^2 would be 0 / 0
        # NumPy's weights are those of the residuals, not of their squares.
        slope, offset = np.polyfit(x, y, 1, w=np.sqrt(1 / i))
        residual = np.sum((y - slope * x - offset) ** 2)
        expected_r2 = 1 - residual / np.sum((y - y.mean()) ** 2)
        assert (alpha, r2) == pytest.approx((-slope, expected_r2), rel=CLOSE, abs=CLOSE)


def test_a_flat_spectrum_is_a_power_law_with_the_exponent_0():
    alpha, r2 = alpha_req(torch.ones(128))
    assert float(alpha) == pytest.approx(0, abs=1e-12)
    assert float(r2) == 1


@pytest.mark.parametrize(
    "measure", [effective_rank, rankme, stable_rank, participation_ratio, nesum]
)
def test_flat_spectra_one_direction_nothing_and_nan(measure):
    assert float(measure(torch.full((40,), 1e-30))) == pytest.approx(40, rel=1e-4)
    assert float(measure(torch.eye(1, 40)[0])) == pytest.approx(1, rel=1e-4)
    assert float(measure(torch.zeros(40))) == 0
    assert math.isnan(measure(torch.tensor([math.nan, 1.0])))


@pytest.mark.parametrize(("n", "k"), [(20, 64), (64, 20), (20, 20)])
def test_rankme_has_a_term_for_each_of_min_n_k_singular_values(n, k):
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(n, 5, generator=draw).double() @ torch.randn(5, k, generator=draw).double()
    sigma = np.linalg.svd(x, compute_uv=False)
    sigma[5:] = 0
    expected = entropy_rank(sigma / sigma.sum() + 1e-7)
    assert float(rankme(correlation(x), rows=n)) == pytest.approx(expected, rel=1e-12)
    metric = BranchSpectra(k, normalize=False)
    metric.update(x, x)
    assert metric.compute().scalars["rankme/target"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("measure", "x", "message"),
    [
        (nesum, torch.tensor([1.0, 2.0]), "descending"),
        (alpha_req, torch.eye(3) + torch.ones(3, 3), "descending"),
        (rankme, torch.ones(3, 4), "square"),
    ],
)
def test_what_cannot_be_measured_is_refused(measure, x, message):
    with pytest.raises(ValueError, match=message):
        measure(x)


def random_views(n: int, q: int, k: int, seed: int = 0, steepness: float = 1.0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    scale = torch.arange(1, k + 1).double() ** -steepness
    means = torch.randn(n, 1, k, generator=draw, dtype=torch.float64) * scale
    noise = torch.randn(n, q, k, generator=draw, dtype=torch.float64) * scale.sqrt()
    return means + 0.3 * noise


def lidar_by_definition(x: np.ndarray, delta: float = 1e-4, eps: float = 1e-8) -> float:
    """Compute LiDAR with loops and the symmetric root, and check scipy's generalised problem."""
    n, q, k = x.shape
    means = x.mean(1)
    S_b = np.zeros((k, k))
    S_w = delta * np.eye(k)
    for mean, views in zip(means, x):
        deviation = mean - means.mean(0)
        S_b += np.outer(deviation, deviation) / (n - 1)
        for view in views:
            S_w += np.outer(view - mean, view - mean) / (n * (q - 1))
    inverse_root = np.linalg.inv(np.real(sqrtm(S_w)))
    lam = np.linalg.eigvalsh(inverse_root @ S_b @ inverse_root).clip(0)
    generalised = eigh(S_b, S_w, eigvals_only=True).clip(0)
    np.testing.assert_allclose(lam, generalised, rtol=1e-7, atol=1e-9 * lam.max())
    return entropy_rank((lam + eps) / (lam + eps).sum())


def test_lidar_is_its_definition():
    for seed in range(100):
        draw = np.random.default_rng(seed)
        n, q, k = int(draw.integers(2, 60)), int(draw.integers(2, 5)), int(draw.integers(2, 40))
        views = random_views(n, q, k, seed, draw.uniform(0, 2)) * 10 ** draw.uniform(-1, 2)
        expected = lidar_by_definition(views.numpy())
        assert float(lidar(views)) == pytest.approx(expected, rel=CLOSE)


def test_lidar_of_two_views_follows_from_the_sums_that_are_kept():
    views = random_views(300, 2, 24)
    a, b = views.unbind(1)
    C_z = (a.mT @ a + b.mT @ b) / 600
    C_plus = (a.mT @ b + b.mT @ a) / 600
    scatter = pair_scatter(C_z, C_plus, views.mean((0, 1)), 300)
    torch.testing.assert_close(scatter, view_scatter(views), rtol=1e-12, atol=1e-15)


def test_lidar_of_collapsed_views_is_zero_and_of_nan_is_nan():
    views = torch.ones(50, 2, 8) + 1e-9 * torch.randn(50, 2, 8)
    assert float(lidar(views)) == 0
    assert math.isnan(lidar(torch.full((5, 2, 3), math.nan)))


def test_discriminant_eigenvalues_are_finite_if_rounding_exceeds_delta():
    """Large features with few directions have no Cholesky factor."""
    x = torch.randn(30, 3, dtype=torch.float64) @ torch.randn(3, 20, dtype=torch.float64) * 1e6
    S = x.mT @ x
    lam = discriminant_eigenvalues(S, S, 1e-12)
    assert bool(lam.isfinite().all())
    torch.testing.assert_close(lam[:3], torch.ones(3).double(), rtol=1e-6, atol=0)
