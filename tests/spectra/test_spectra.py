"""Effective rank, curves, alignment and BranchSpectra against NumPy, and as properties."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from conftest import features
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from rdm_solo.filters import SpectralFilter
from rdm_solo.spectra import (
    BranchSpectra,
    Spectra,
    alignment,
    correlation,
    effective_rank,
    spearman,
)
from rdm_solo.spectra.comparison import monotonicity
from rdm_solo.spectra.logits import StepCorrelation, low_rank_spectrum

ROUTES = [{}, {"max_dim": 4, "sample": 256}]
both_routes = pytest.mark.parametrize("options", ROUTES, ids=["matrices", "rows"])


def numpy_erank(x: np.ndarray) -> float:
    """Return the effective rank of rows from their singular values."""
    lam = np.linalg.svd(x.astype(np.float64), compute_uv=False) ** 2
    q = lam / lam.sum()
    q = q[q > 0]
    return float(np.exp(-(q * np.log(q)).sum()))


def outputs(n: int, k: int) -> list[Tensor]:
    """Return online outputs, targets, positives and projections."""
    kinds = ["1/i", "batchnorm", "1/i", "gaussian"]
    return [features(kind, n, k, seed=seed) for seed, kind in enumerate(kinds)]


def spectra_of(*parts: Tensor, batch: int = 1000, **options) -> Spectra:
    metric = BranchSpectra(parts[0].shape[1], **options)
    for rows in torch.arange(len(parts[0])).split(batch):
        metric.update(*[x[rows] for x in parts])
    return metric.compute()


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    function=st.sampled_from([("log1p", None), ("log1p_sq", None), ("pow", 0.7)]),
    shape=st.sampled_from([(10, 24), (24, 10)]),
)
def test_a_low_pass_filter_never_raises_the_effective_rank(seed, function, shape):
    """Theorem 3 holds for a filter's outputs."""
    x = features("1/i", *shape, seed=seed)
    rank = effective_rank(correlation(x))
    filtered = SpectralFilter("online", *function)(x)
    assert effective_rank(correlation(filtered)) < rank
    raised = SpectralFilter("target", "pow", -0.5)(x)
    assert effective_rank(correlation(raised)) > rank


def test_alignment_of_shared_and_of_rotated_eigenspaces():
    v = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64))[0]
    lam = torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0, 0.5], dtype=torch.float64)
    C_z, C_p = (v * lam) @ v.T, (v * lam**2) @ v.T
    assert float(alignment(C_p, C_z)) == pytest.approx(1)
    rotation = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64))[0]
    C_p = rotation @ C_p @ rotation.T
    image = C_p @ v
    cosines = (v * image).sum(0) / image.norm(dim=0)
    assert float(alignment(C_p, C_z, m=6)) == pytest.approx(float(cosines.mean()))
    assert float(alignment(C_p, C_z, m=2)) == pytest.approx(float(cosines[:2].mean()))
    weighted = (cosines * lam).sum() / lam.sum()
    assert float(alignment(C_p, C_z, m=6, weighted=True)) == pytest.approx(float(weighted))


@pytest.mark.parametrize("decimals", [0, 10])
def test_spearman_equals_scipys_with_and_without_ties(decimals):
    a, b = np.random.default_rng(0).normal(size=(2, 30)).round(decimals)
    expected = scipy.stats.spearmanr(a, b).statistic
    assert float(spearman(torch.tensor(a), torch.tensor(b))) == pytest.approx(expected)


def test_branch_spectra_over_batches_equal_the_definitions():
    parts = outputs(90, 12)
    spectra = spectra_of(*parts, batch=40)
    p, z, z_plus, y = [normalize(x.double(), dim=1) for x in parts]
    C_p, C_z = correlation(p), correlation(z)
    expected = {
        "erank/online": numpy_erank(p.numpy()),
        "erank/target": numpy_erank(z.numpy()),
        "erank/gap": numpy_erank(z.numpy()) - numpy_erank(p.numpy()),
        "erank/projection": numpy_erank(y.numpy()),
        "feature/variance": float(y.var(0, correction=0).sum()),
    }
    scalars = {name: spectra.scalars[name] for name in expected}
    assert scalars == pytest.approx(expected, rel=1e-8)
    lam, v = torch.linalg.eigh(C_z)
    directional = ((v * (C_p @ v)).sum(0) / lam).sqrt()
    signal = spectra.leading
    torch.testing.assert_close(
        spectra.filter_curve_directional[:signal], directional.flip(0)[:signal]
    )
    curve = (spectra.lam_online / spectra.lam_target).sqrt()[:signal]
    order = scipy.stats.spearmanr(curve, spectra.lam_target[:signal]).statistic
    assert spectra.scalars["filter/monotonicity"] == pytest.approx(order)
    C_plus = (z.T @ z_plus + z_plus.T @ z) / 180
    omega = torch.linalg.eigvalsh(C_plus).clamp_min(0) / lam  # Theorem 2
    torch.testing.assert_close(spectra.ideal_filter[:signal], omega.flip(0)[:signal])
    assert spectra.rows == 90


@both_routes
def test_a_projection_that_is_a_branchs_output_has_exactly_its_eigenvalues(options):
    p, z, z_plus, _ = outputs(90, 12)
    spectra = spectra_of(p, z, z_plus, z, **options)
    assert torch.equal(spectra.lam_projection, spectra.lam_target)
    assert spectra.scalars["erank/projection"] == spectra.scalars["erank/target"]


@pytest.mark.parametrize(
    ("curve", "lam", "expected"),
    [
        ([3, 2, 0, 0], [9, 4, 2, 1], 1),
        ([0, 0, 2, 3], [9, 4, 2, 1], -1),
        ([0, 0, 0, 1], [2, 2, 2, 1], -1),  # ties in both
        ([1, 1, 0], [2, 2, 1], 1),
        ([1, 1, 1], [3, 2, 1], 0),
        ([2, 3, math.nan], [2, 1, 5], -1),
    ],
)
def test_monotonicity_is_1_if_no_direction_is_out_of_order(curve, lam, expected):
    actual = monotonicity(torch.tensor(curve).double(), torch.tensor(lam).double())
    assert float(actual) == pytest.approx(expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("batch", [2816, 128])
@pytest.mark.parametrize("seed", range(3))
def test_monotonicity_does_not_rank_rounding_noise(seed, batch, dtype):
    """A predictor with a bottleneck of 8 leaves 24 of 32 directions empty."""
    draw = torch.Generator().manual_seed(seed)
    z = features("1/i", 2816, 32, seed=seed)
    predictor = torch.randn(32, 8, generator=draw) @ torch.randn(8, 32, generator=draw)
    p = (z @ predictor).to(dtype)
    spectra = spectra_of(p, z, batch=batch)
    lam_p = torch.linalg.svdvals(normalize(p.double(), dim=1)).square()
    lam_z = torch.linalg.svdvals(normalize(z.double(), dim=1)).square()
    lam_p[8:] = 0
    order = scipy.stats.spearmanr((lam_p / lam_z).sqrt(), lam_z).statistic
    # With these ties, Spearman's correlation is at most the root of 1 - tied.
    tied = (24**3 - 24) / (32**3 - 32)
    expected = order / math.sqrt(1 - tied)
    assert expected > 0.9
    assert spectra.leading == 32
    assert spectra.scalars["filter/monotonicity"] == pytest.approx(expected, abs=1e-12)
    assert not spectra.filter_curve[8:].any()


@both_routes
@pytest.mark.parametrize(("value", "rank"), [(0.0, 0), (1.0, 1)])
def test_collapsed_outputs_have_finite_scalars(options, value, rank):
    x = torch.full((5, 12), value)
    scalars = spectra_of(x, x, x, **options).scalars
    assert np.isfinite(list(scalars.values())).all()
    assert scalars["erank/target"] == pytest.approx(rank)


@both_routes
def test_outputs_that_are_missing_or_have_another_shape_are_refused(options):
    metric = BranchSpectra(dim=12, **options)
    with pytest.warns(UserWarning, match="before"), pytest.raises(ValueError, match="no batch"):
        metric.compute()
    with pytest.raises(ValueError, match="shape"):
        metric.update(torch.ones(2, 12), torch.ones(3, 12))
    broken = torch.full((4, 12), math.nan)
    metric.update(broken, broken)
    with pytest.raises(ValueError, match="no finite row"):
        metric.compute()


def test_arrays_of_one_column_keep_their_axis():
    x = features("gaussian", 20, 1)
    for name, array in spectra_of(x, x, x).arrays().items():
        is_count = name in ("leading", "dimensions", "rows", "sampled")
        assert array.shape == (() if is_count else (1,)), name


def assert_same(actual: Spectra, expected: Spectra, rel: float) -> None:
    """Compare scalars, and arrays within ``rel`` of their largest entry."""
    # A sample of rows consists of pairs of views in any order, and has no RankMe.
    names = actual.scalars.keys() & expected.scalars.keys()
    differing = actual.scalars.keys() ^ expected.scalars.keys()
    assert differing <= {"lidar/target", "rankme/online", "rankme/target"}
    for name in names:
        assert actual.scalars[name] == pytest.approx(expected.scalars[name], rel=rel, abs=rel), name
    arrays = actual.arrays()
    for name, array in expected.arrays().items():
        if name != "sampled":
            atol = rel * float(array.nan_to_num().abs().max())
            torch.testing.assert_close(
                arrays[name], array, rtol=rel, atol=atol, equal_nan=True, msg=name
            )


def test_broken_rows_are_excluded_whichever_output_is_broken():
    parts = outputs(20, 6)
    expected = spectra_of(*[x[3:] for x in parts])
    parts[0][0, 1] = math.nan
    parts[2][1] = math.inf
    parts[3][2, 5] = -math.inf
    spectra = spectra_of(*parts)
    assert spectra.rows == 17
    assert_same(spectra, expected, rel=1e-9)


@pytest.mark.parametrize(("n", "k"), [(40, 48), (60, 24), (64, 64)])
def test_a_sample_with_every_row_gives_what_matrices_give(n, k):
    """Positives are no permutation of the targets."""
    parts = outputs(n, k)
    spectra = spectra_of(*parts, batch=17, max_dim=8, sample=64)
    expected = spectra_of(*parts)
    assert spectra.sampled
    assert not expected.sampled
    assert spectra.rows == n
    assert spectra.lam_online.shape == (min(64, k),)
    assert_same(spectra, expected, rel=1e-9)


def test_alignments_with_the_papers_m_and_with_weights_equal_the_function():
    p, z, z_plus, _ = outputs(300, 10)
    scalars = spectra_of(p, z, z_plus, m=3).scalars
    p, z, z_plus = [normalize(x.double(), dim=1) for x in (p, z, z_plus)]
    C_z = correlation(z)
    matrices = {
        "online_target": correlation(p),
        "target_positive": (z.T @ z_plus + z_plus.T @ z) / 600,
    }
    for name, C in matrices.items():
        expected = {
            f"alignment/{name}": alignment(C, C_z),
            f"alignment/{name}_paper_m": alignment(C, C_z, 3),
            f"alignment/{name}_weighted": alignment(C, C_z, weighted=True),
            f"alignment/{name}_weighted_paper_m": alignment(C, C_z, 3, weighted=True),
        }
        for column, value in expected.items():
            assert scalars[column] == pytest.approx(float(value), rel=1e-9, abs=1e-12), column
    rank = effective_rank(matrices["target_positive"])
    assert scalars["erank/positive"] == pytest.approx(float(rank))


@both_routes
def test_without_positives_what_needs_them_is_absent(options):
    p, z, z_plus, y = outputs(50, 8)
    expected = spectra_of(p, z, z_plus, y, **options)
    metric = BranchSpectra(8, **options)
    metric.update(p, z, projection=y)
    spectra = metric.compute()
    absent = {name for name in expected.scalars if "positive" in name or "lidar" in name}
    assert expected.scalars.keys() - spectra.scalars.keys() == absent
    assert spectra.lam_positive.isnan().all()
    assert spectra.ideal_filter.isnan().all()
    assert spectra.lam_positive.shape == expected.lam_positive.shape
    assert spectra.scalars["erank/gap"] == pytest.approx(expected.scalars["erank/gap"], rel=1e-9)
    metric.update(p, z, z_plus)
    with pytest.raises(ValueError, match="positive"):
        metric.compute()
    metric.reset()
    metric.update(p, z, z_plus)  # another epoch may have them
    assert metric.compute().scalars.keys() == expected.scalars.keys()


@pytest.mark.parametrize(("n", "k", "b"), [(50, 30, 6), (50, 4, 6), (5, 30, 6)])
def test_low_rank_spectrum_equals_that_of_the_logits(n, k, b):
    h, W = features("1/i", n, b), features("gaussian", k, b, seed=1)
    logits = h.double() @ W.double().T
    expected = torch.linalg.svdvals(logits).square() / n
    lam = low_rank_spectrum(correlation(h), W)
    assert lam.shape == (min(k, b),)
    size = min(n, k, b)
    torch.testing.assert_close(lam[:size], expected[:size], rtol=1e-9, atol=1e-14)
    assert float(lam[size:].sum()) < 1e-14


@both_routes
@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_rank_and_variance_around_the_mean_equal_numpys(options, offset):
    y = features("1/i", 200, 12).double() + offset
    scalars = spectra_of(y, y, y, y, steps=True, **options).scalars
    x = normalize(y, dim=1).numpy()
    spread = x.var(0).sum() / (x**2).sum(1).mean()
    rel = max(1e-9, 1e-13 / spread)  # rounding of the second moment, which is mostly the mean's
    assert scalars["feature/spread"] == pytest.approx(spread, rel=rel)
    assert scalars["erank/centred"] == pytest.approx(numpy_erank(x - x.mean(0)), rel=rel)


def test_rank_and_variance_around_each_steps_mean_equal_numpys():
    y = features("1/i", 480, 12).double() + 3
    scalars = spectra_of(y, y, y, y, batch=60, steps=True).scalars
    x = normalize(y, dim=1).reshape(8, 60, 12).numpy()
    deviations = (x - x.mean(1, keepdims=True)).reshape(480, 12)
    spread = (deviations**2).sum(1).mean()
    assert scalars["feature/spread"] == pytest.approx(spread, rel=1e-9)
    assert scalars["erank/centred"] == pytest.approx(numpy_erank(deviations), rel=1e-9)


def test_step_correlation_equals_numpys():
    y = features("1/i", 480, 12).double() + 3
    metric = StepCorrelation(12)
    for step in y.split(60):
        metric.update(step)
    C, C_means = metric.compute()
    means = y.reshape(8, 60, 12).numpy().mean(1)
    np.testing.assert_allclose(C, y.T @ y / 480, rtol=1e-12)
    np.testing.assert_allclose(C_means, means.T @ means / 8, rtol=1e-12)
