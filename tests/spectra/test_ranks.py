"""Measures of rank against other forms of their definitions, on hostile spectra and rows."""

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

SPECTRA = 200
CLOSE = 1e-6


def spectrum(number: int) -> np.ndarray:
    """Descending: power laws, exponentials, plateaus, few directions, and what is drawn at random;
    over thirty orders of magnitude."""
    draw = np.random.default_rng(number)
    k = int(draw.integers(14, 200))
    i = np.arange(1, k + 1)
    kinds = [
        i ** -draw.uniform(0, 4),
        np.exp(-i * draw.uniform(0, 0.3)),
        np.where(i <= draw.integers(1, k), 1.0, draw.uniform(1e-9, 1e-2)),
        draw.exponential(size=k),
        np.where(i <= draw.integers(1, k), draw.uniform(0.5, 1, k), 0.0),
    ]
    return np.sort(kinds[number % len(kinds)])[::-1].copy() * 10.0 ** draw.uniform(-15, 15)


def entropy_rank(p: np.ndarray) -> float:
    """As a product of powers; the measures have a sum of logarithms."""
    p = p[p > 0].astype(np.longdouble)
    return float(np.prod(p**-p))


def weighted_line(lam: np.ndarray, first: int, last: int) -> tuple[float, float]:
    """By numpy's polynomial fit, whose weights are those of the residuals, not of their squares."""
    i = np.arange(first, last + 1)
    x, y = np.log(i), np.log(lam[first - 1 : last])
    slope, offset = np.polyfit(x, y, 1, w=np.sqrt(1 / i))
    return -slope, 1 - np.sum((y - slope * x - offset) ** 2) / np.sum((y - y.mean()) ** 2)


def test_each_measure_agrees_with_another_form_on_fuzzed_spectra():
    for seed in range(SPECTRA):
        lam = spectrum(seed)
        given = torch.from_numpy(lam)
        sigma = np.sqrt(lam)
        known = lam[lam > lam.max() * len(lam) * np.finfo(float).eps]
        want = {
            effective_rank: entropy_rank(lam / lam.sum()),
            rankme: entropy_rank(
                np.where(lam >= known.min(), sigma, 0) / np.sqrt(known).sum() + 1e-7
            ),
            stable_rank: np.linalg.norm(sigma) ** 2 / np.linalg.norm(sigma, np.inf) ** 2,
            participation_ratio: 1 / np.sum((lam / lam.sum()) ** 2),
            nesum: np.mean(lam / lam[0]) * len(lam),
        }
        for measure, value in want.items():
            assert float(measure(given)) == pytest.approx(value, rel=CLOSE), (seed, measure)
        alpha, r2 = alpha_req(given)
        last = min(100, len(known))
        if last < 13:
            assert math.isnan(alpha)
            assert math.isnan(r2)
        elif np.ptp(np.log(lam[10:last])) > 1e-9:
            value = weighted_line(lam, 11, last)
            assert (float(alpha), float(r2)) == pytest.approx(value, rel=CLOSE, abs=CLOSE), seed


@pytest.mark.parametrize(
    "measure", [effective_rank, rankme, stable_rank, participation_ratio, nesum]
)
def test_flat_spectra_one_direction_nothing_and_nan(measure):
    assert float(measure(torch.full((40,), 1e-30))) == pytest.approx(40, rel=1e-4)
    assert float(measure(torch.eye(1, 40)[0])) == pytest.approx(1, rel=1e-4)
    assert float(measure(torch.zeros(40))) == 0
    assert math.isnan(measure(torch.tensor([math.nan, 1.0])))


@pytest.mark.parametrize(("n", "k"), [(20, 64), (64, 20), (20, 20)])
def test_rankme_has_a_term_for_each_singular_value(n, k):
    """min(N, k) of them, also where the last are zero."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(n, 5, generator=draw).double() @ torch.randn(5, k, generator=draw).double()
    sigma = np.linalg.svd(x, compute_uv=False)
    sigma[5:] = 0
    p = sigma / sigma.sum() + 1e-7
    assert len(p) == min(n, k)
    expected = np.exp(-(p * np.log(p)).sum())
    assert float(rankme(correlation(x), rows=n)) == pytest.approx(expected, rel=1e-12)
    metric = BranchSpectra(k, normalize=False)
    metric.update(x, x)
    assert metric.compute().scalars["rankme/target"] == pytest.approx(expected, rel=1e-12)


def test_a_flat_spectrum_is_a_power_law_with_the_exponent_0():
    assert [float(x) for x in alpha_req(torch.ones(128))] == pytest.approx([0, 1], abs=1e-12)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: nesum(torch.tensor([1.0, 2.0])), "descending order"),
        (lambda: alpha_req(torch.ones(3), first=0), "first"),
        (lambda: lidar(torch.ones(3, 4)), r"shape \(n, q, k\)"),
        (lambda: rankme(torch.ones(3, 4)), "square matrix"),
    ],
)
def test_what_cannot_be_measured_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def views_of(n: int, q: int, k: int, seed: int, steepness: float = 1.0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    scale = torch.arange(1, k + 1).double() ** -steepness
    means = torch.randn(n, 1, k, generator=draw, dtype=torch.float64) * scale
    return means + 0.3 * torch.randn(n, q, k, generator=draw, dtype=torch.float64) * scale.sqrt()


def by_definition(views: Tensor, delta: float = 1e-4, eps: float = 1e-8) -> float:
    """With loops over samples, the symmetric root, and scipy's generalised problem beside it."""
    x = views.numpy()
    n, q, k = x.shape
    means = [x[i].sum(0) / q for i in range(n)]
    grand = sum(means) / n
    S_b = sum(np.outer(m - grand, m - grand) for m in means) / (n - 1)
    S_w = sum(np.outer(v - m, v - m) for m, of in zip(means, x) for v in of) / (n * (q - 1))
    S_w = S_w + delta * np.eye(k)
    root = np.linalg.inv(np.real(sqrtm(S_w)))
    lam = np.clip(np.linalg.eigvalsh(root @ S_b @ root), 0, None)
    general = np.clip(eigh(S_b, S_w, eigvals_only=True), 0, None)
    np.testing.assert_allclose(lam, general, rtol=1e-7, atol=1e-9 * lam.max())
    return entropy_rank((lam + eps) / (lam + eps).sum())


def test_lidar_is_its_definition():
    for seed in range(100):
        draw = np.random.default_rng(seed)
        n, q, k = int(draw.integers(2, 60)), int(draw.integers(2, 5)), int(draw.integers(2, 40))
        views = views_of(n, q, k, seed, draw.uniform(0, 2)) * 10 ** draw.uniform(-1, 2)
        assert float(lidar(views)) == pytest.approx(by_definition(views), rel=CLOSE), seed


def test_lidar_of_two_views_follows_from_the_sums_that_are_kept():
    views = views_of(300, 2, 24, 0)
    a, b = views.unbind(1)
    C_z = (a.mT @ a + b.mT @ b) / 600
    C_plus = (a.mT @ b + b.mT @ a) / 600
    for got, want in zip(pair_scatter(C_z, C_plus, views.mean((0, 1)), 300), view_scatter(views)):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-15)


def test_lidar_of_collapsed_views_is_zero_not_the_largest():
    views = torch.ones(50, 2, 8) + 1e-9 * torch.randn(50, 2, 8)
    assert float(lidar(views)) == 0
    assert math.isnan(lidar(torch.full((5, 2, 3), math.nan)))


def test_eigenvalues_where_rounding_exceeds_delta():
    """Cholesky's factor does not exist: large features of few directions, and a tiny delta."""
    x = torch.randn(30, 3, dtype=torch.float64) @ torch.randn(3, 20, dtype=torch.float64) * 1e6
    S = x.mT @ x
    lam = discriminant_eigenvalues(S, S, 1e-12)
    assert bool(lam.isfinite().all())
    torch.testing.assert_close(lam[:3], torch.ones(3).double(), rtol=1e-6, atol=0)
