"""Effective rank, curves, alignment and BranchSpectra against NumPy, and as properties."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from conftest import features
from support.branches import assert_same, outputs
from torch import Tensor
from torch.nn.functional import normalize

from rdm_solo.spectra import (
    BranchSpectra,
    Spectra,
    alignment,
    correlation,
    effective_rank,
)
from rdm_solo.spectra.comparison import monotonicity
from rdm_solo.spectra.logits import StepCorrelation, low_rank_spectrum

MATRICES = {}
SAMPLE = {"max_dim": 4, "sample": 256}
both_routes = pytest.mark.parametrize("options", [MATRICES, SAMPLE], ids=str)


def numpy_erank(x: np.ndarray) -> float:
    """Return the effective rank of float64 rows from their singular values."""
    sigma = np.linalg.svd(x, compute_uv=False)
    lam = sigma**2
    entropy = scipy.special.entr(lam / lam.sum()).sum()
    return math.exp(entropy)


def unit_rows(parts: Sequence[Tensor]) -> list[Tensor]:
    return [normalize(x.double(), dim=1) for x in parts]


def positive_correlation(z: Tensor, z_plus: Tensor) -> Tensor:
    cross = z.mT @ z_plus / len(z)
    return (cross + cross.mT) / 2


def spectra_of(*parts: Tensor, batch: int = 1000, **options) -> Spectra:
    n, k = parts[0].shape
    metric = BranchSpectra(k, **options)
    for rows in torch.arange(n).split(batch):
        step = [x[rows] for x in parts]
        metric.update(*step)
    return metric.compute()


def test_branch_spectra_over_batches_equal_the_definitions():
    parts = outputs(90, 12)
    spectra = spectra_of(*parts, batch=40)
    p, z, z_plus, y = unit_rows(parts)
    online = numpy_erank(p.numpy())
    target = numpy_erank(z.numpy())
    expected = {
        "erank/online": online,
        "erank/target": target,
        "erank/gap": target - online,
        "erank/projection": numpy_erank(y.numpy()),
        "feature/variance": y.numpy().var(0).sum(),
    }
    for name, value in expected.items():
        close = pytest.approx(value, rel=1e-8)
        assert spectra.scalars[name] == close, name
    assert spectra.rows == 90

    signal = slice(spectra.leading)
    lam, v = torch.linalg.eigh(correlation(z))
    image = correlation(p) @ v
    energy = (v * image).sum(0)
    curve = (energy / lam).sqrt().flip(0)
    torch.testing.assert_close(spectra.filter_curve_directional[signal], curve[signal])
    ratio = spectra.lam_online / spectra.lam_target
    order = scipy.stats.spearmanr(ratio[signal], spectra.lam_target[signal])
    monotone = pytest.approx(order.statistic)
    assert spectra.scalars["filter/monotonicity"] == monotone
    lam_plus = torch.linalg.eigvalsh(positive_correlation(z, z_plus))
    omega = lam_plus.clamp_min(0) / lam  # Theorem 2
    omega = omega.flip(0)
    torch.testing.assert_close(spectra.ideal_filter[signal], omega[signal])


@pytest.mark.parametrize(
    ("curve", "lam", "expected"),
    [
        ([0, 0, 2, 3], [9, 4, 2, 1], -1),
        ([1, 1, 0], [2, 2, 1], 1),  # ties in both
        ([1, 1, 1], [3, 2, 1], 0),
        ([2, 3, math.nan], [2, 1, 5], -1),
    ],
)
def test_monotonicity_is_1_if_no_direction_is_out_of_order(curve, lam, expected):
    curve = torch.tensor(curve, dtype=torch.float64)
    lam = torch.tensor(lam, dtype=torch.float64)
    assert monotonicity(curve, lam).item() == pytest.approx(expected)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
    ],
)
def test_monotonicity_does_not_rank_rounding_noise(dtype):
    """A predictor with a bottleneck of 8 leaves 24 of 32 directions empty."""
    z = features("1/i", 2816, 32)
    bottleneck = features("gaussian", 32, 8, seed=1)
    predictor = bottleneck @ features("gaussian", 8, 32, seed=2)
    p = (z @ predictor).to(dtype)
    spectra = spectra_of(p, z, batch=128)
    assert not spectra.filter_curve[8:].any()
    rows_p, rows_z = unit_rows([p, z])
    sigma_p = torch.linalg.svdvals(rows_p)
    sigma_z = torch.linalg.svdvals(rows_z)
    sigma_p[8:] = 0
    order = scipy.stats.spearmanr(sigma_p / sigma_z, sigma_z).statistic
    # With these ties, Spearman's correlation is at most the root of 1 - tied.
    tied = (24**3 - 24) / (32**3 - 32)
    expected = order / math.sqrt(1 - tied)
    assert expected > 0.9
    assert spectra.scalars["filter/monotonicity"] == pytest.approx(expected, abs=1e-12)


@both_routes
@pytest.mark.parametrize(
    ("value", "rank"),
    [
        (0.0, 0),
        (1.0, 1),
    ],
)
def test_only_alpha_and_uniformity_are_undefined_for_collapsed_outputs(options, value, rank):
    x = torch.full((6, 12), value)
    scalars = spectra_of(x, x, x, **options).scalars
    assert scalars["erank/target"] == pytest.approx(rank)
    parts = outputs(50, 12)[:3]
    other = spectra_of(*parts, **options).scalars
    for name in other.keys() - scalars.keys():
        assert name.startswith(("alpha", "uniformity"))


@both_routes
def test_a_metric_without_a_finite_row_refuses_to_compute(options):
    broken = torch.full((4, 12), math.nan)
    with pytest.raises(ValueError, match="finite"):
        spectra_of(broken, broken, **options)


def test_broken_rows_are_excluded_whichever_output_is_broken():
    parts = outputs(20, 6)
    expected = spectra_of(*[x[3:] for x in parts])
    parts[0][0, 1] = math.nan
    parts[2][1] = math.inf
    parts[3][2, 5] = -math.inf
    spectra = spectra_of(*parts)
    assert spectra.rows == 17
    assert_same(spectra, expected)


@pytest.mark.parametrize(
    ("n", "k"),
    [
        (40, 48),
        (60, 24),
        (64, 64),
    ],
)
def test_a_sample_with_every_row_gives_what_matrices_give(n, k):
    """Positives are no permutation of the targets."""
    parts = outputs(n, k)
    spectra = spectra_of(*parts, batch=17, max_dim=8, sample=64)
    assert spectra.sampled
    assert spectra.rows == n
    assert_same(spectra, spectra_of(*parts))


def test_alignments_equal_the_mean_cosines_of_eigenvectors():
    parts = outputs(300, 10)[:3]
    scalars = spectra_of(*parts, m=3).scalars
    p, z, z_plus = unit_rows(parts)
    C_z = correlation(z)
    lam, u = torch.linalg.eigh(C_z)
    lam = lam.flip(0)
    matrices = {
        "online_target": correlation(p),
        "target_positive": positive_correlation(z, z_plus),
    }
    for pair, C in matrices.items():
        cosines = torch.cosine_similarity(u, C @ u, dim=0)
        cosines = cosines.flip(0)
        for rule, m in (("", None), ("_paper_m", 3)):  # by default here all
            mean = cosines[:m].mean()
            mean = pytest.approx(mean.item())
            weights = lam[:m] / lam[:m].sum()
            weighted = weights @ cosines[:m]
            weighted = pytest.approx(weighted.item())
            assert scalars[f"alignment/{pair}{rule}"] == mean
            assert scalars[f"alignment/{pair}_weighted{rule}"] == weighted
            assert alignment(C, C_z, m).item() == mean
            assert alignment(C, C_z, m, weighted=True).item() == weighted
    rank = effective_rank(matrices["target_positive"])
    assert scalars["erank/positive"] == pytest.approx(rank.item())


@both_routes
def test_without_positives_what_needs_them_is_absent(options):
    p, z, z_plus, y = outputs(50, 8)
    expected = spectra_of(p, z, z_plus, y, **options)
    metric = BranchSpectra(8, **options)
    metric.update(p, z, projection=y)
    spectra = metric.compute()
    for name, value in expected.scalars.items():
        if "positive" in name or "lidar" in name:
            assert name not in spectra.scalars
        else:
            close = pytest.approx(value, rel=1e-9)
            assert spectra.scalars[name] == close, name
    for array in (spectra.lam_positive, spectra.ideal_filter):
        assert array.isnan().all()
        assert array.shape == (8,)
    metric.update(p, z, z_plus)
    with pytest.raises(ValueError, match="positive"):
        metric.compute()
    metric.reset()
    metric.update(p, z, z_plus)  # another epoch may have them
    assert metric.compute().scalars.keys() == expected.scalars.keys()


@pytest.mark.parametrize(
    ("n", "k", "b"),
    [
        (50, 30, 6),
        (50, 4, 6),
        (5, 30, 6),
    ],
)
def test_low_rank_spectrum_of_sums_over_steps_equals_that_of_the_logits(n, k, b):
    h = features("1/i", n, b).double()
    metric = StepCorrelation(b)
    steps = h.chunk(5)
    for step in steps:
        metric.update(step)
    C, C_means = metric.compute()
    means = torch.stack([step.mean(0) for step in steps])
    torch.testing.assert_close(C_means, means.T @ means / 5, rtol=1e-12, atol=1e-14)
    W = features("gaussian", k, b, seed=1).double()
    sigma = torch.linalg.svdvals(h @ W.mT)
    size = min(n, k, b)
    expected = torch.zeros(min(k, b), dtype=torch.float64)
    expected[:size] = sigma[:size] ** 2 / n
    actual = low_rank_spectrum(C, W)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize(
    ("options", "batch", "offset"),
    [
        (MATRICES, 240, 1e3),
        (MATRICES, 60, 3),
        (SAMPLE, 240, 3),
    ],
)
def test_rank_and_variance_around_each_steps_mean_equal_numpys(options, batch, offset):
    y = features("1/i", 240, 12).double() + offset
    spectra = spectra_of(y, y, batch=batch, steps=True, **options)
    x = normalize(y, dim=1).numpy()
    x = x.reshape(-1, batch, 12)
    deviations = x - x.mean(1, keepdims=True)
    deviations = deviations.reshape(240, 12)
    squares = np.sum(deviations**2, axis=1)
    spread = squares.mean()
    rank = numpy_erank(deviations)
    rel = max(1e-9, 1e-13 / spread)  # rounding of the second moment, which is mostly the mean's
    assert spectra.scalars["feature/spread"] == pytest.approx(spread, rel=rel)
    assert spectra.scalars["erank/centred"] == pytest.approx(rank, rel=rel)
