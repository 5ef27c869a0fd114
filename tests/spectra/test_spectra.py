"""Effective rank, curves and alignment against NumPy, and as properties."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from conftest import features
from hypothesis import given, settings
from hypothesis import strategies as st

from rdm_solo.filters import SpectralFilter
from rdm_solo.spectra import BranchSpectra, alignment, correlation, effective_rank, spearman
from rdm_solo.spectra.comparison import monotonicity
from rdm_solo.spectra.logits import StepCorrelation, low_rank_spectrum


def numpy_erank(x: np.ndarray) -> float:
    """From singular values, in NumPy: another route to the same number."""
    lam = np.linalg.svd(x.astype(np.float64), compute_uv=False) ** 2
    q = lam / lam.sum()
    q = q[q > 0]
    return float(np.exp(-(q * np.log(q)).sum()))


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    function=st.sampled_from([("log1p", None), ("log1p_sq", None), ("pow", 0.7)]),
    wide=st.booleans(),
)
def test_a_low_pass_filter_never_raises_the_effective_rank(seed, function, wide):
    """Theorem 3, on what the filter itself puts out."""
    x = features("1/i", *((10, 24) if wide else (24, 10)), seed=seed)
    filtered = SpectralFilter("online", *function)(x)
    assert effective_rank(correlation(filtered)) < effective_rank(correlation(x))
    raised = SpectralFilter("target", "pow", -0.5)(x)
    assert effective_rank(correlation(raised)) > effective_rank(correlation(x))


def test_alignment_of_shared_and_of_turned_eigenspaces():
    q = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64))[0]
    lam = torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0, 0.5], dtype=torch.float64)
    C_z, C_p = (q * lam) @ q.T, (q * lam**2) @ q.T
    assert float(alignment(C_p, C_z)) == pytest.approx(1)
    turn = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64))[0]
    turned = turn @ C_p @ turn.T
    lam_z, u = np.linalg.eigh(C_z.numpy())
    images = turned.numpy() @ u
    cosines = (u * images).sum(0) / np.linalg.norm(images, axis=0)
    assert float(alignment(turned, C_z, m=6)) == pytest.approx(cosines.mean())
    weighted = float(alignment(turned, C_z, m=6, weighted=True))
    assert weighted == pytest.approx((cosines * lam_z).sum() / lam_z.sum())
    assert float(alignment(turned, C_z, m=2)) == pytest.approx(cosines[::-1][:2].mean())
    with pytest.raises(ValueError, match="between 1 and k=6"):
        alignment(C_p, C_z, m=7)


@pytest.mark.parametrize("ties", [False, True])
def test_spearman_equals_scipys(ties):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=30), rng.normal(size=30)
    if ties:
        a, b = a.round(), b.round()
    want = scipy.stats.spearmanr(a, b).statistic
    assert float(spearman(torch.tensor(a), torch.tensor(b))) == pytest.approx(want)


def test_branch_spectra_over_batches_equal_the_definitions():
    unit = torch.nn.functional.normalize
    p, z, z_plus, y = (features(k, 90, 12, seed=i) for i, k in enumerate(["1/i", "gaussian"] * 2))
    metric = BranchSpectra(dim=12)
    for rows in torch.arange(90).split(40):
        metric.update(p[rows], z[rows], z_plus[rows], y[rows])
    spectra = metric.compute()
    p, z, z_plus, y = (unit(v.double(), dim=1) for v in (p, z, z_plus, y))
    C_p, C_z = correlation(p), correlation(z)
    lam_plus = torch.linalg.eigvalsh((z.T @ z_plus + z_plus.T @ z) / 180).flip(0)
    want = {
        "erank/online": numpy_erank(p.numpy()),
        "erank/target": numpy_erank(z.numpy()),
        "erank/gap": numpy_erank(z.numpy()) - numpy_erank(p.numpy()),
        "erank/projection": numpy_erank(y.numpy()),
        "feature/variance": (y - y.mean(0)).square().sum(1).mean(),
    }
    for name, value in want.items():
        assert spectra.scalars[name] == pytest.approx(float(value), rel=1e-8), name
    lam, u = torch.linalg.eigh(C_z)
    directional = torch.stack([(v @ C_p @ v / value).sqrt() for v, value in zip(u.T, lam)])
    torch.testing.assert_close(spectra.filter_curve_directional, directional.flip(0))
    curve = (spectra.lam_online / spectra.lam_target).sqrt()
    want_order = scipy.stats.spearmanr(curve, spectra.lam_target).statistic
    assert spectra.scalars["filter/monotonicity"] == pytest.approx(want_order)
    omega = lam_plus.clamp_min(0) / lam.flip(0)  # Theorem 2
    torch.testing.assert_close(spectra.ideal_filter, omega)
    assert spectra.rows == 90
    # A projection that is one of the branches' outputs has exactly its eigenvalues.
    for options in ({}, {"max_dim": 4, "sample": 256}):
        found = spectra_of([p, z, z_plus, z], **options)
        assert torch.equal(found.lam_projection, found.lam_target)
        assert found.scalars["erank/projection"] == found.scalars["erank/target"]


@pytest.mark.parametrize(
    ("curve", "lam", "expected"),
    [
        ([3, 2, 0, 0], [9, 4, 2, 1], 1),
        ([0, 0, 2, 3], [9, 4, 2, 1], -1),
        ([0, 0, 1], [2, 2, 1], -1),  # ties in both
        ([0, 0, 0, 1], [2, 2, 2, 1], -1),
        ([1, 1, 0], [2, 2, 1], 1),
        ([1, 1, 1], [3, 2, 1], 0),
        ([2, 3, math.nan], [2, 1, 5], -1),
    ],
)
def test_monotonicity_is_1_where_no_direction_is_out_of_order(curve, lam, expected):
    curve, lam = (torch.tensor(x, dtype=torch.float64) for x in (curve, lam))
    assert float(monotonicity(curve, lam)) == pytest.approx(expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("seed", range(4))
def test_monotonicity_does_not_rank_rounding_noise(seed, dtype):
    """A predictor with a bottleneck of 8 leaves 24 of 32 directions empty."""
    draw = torch.Generator().manual_seed(seed)
    z = features("1/i", 2816, 32, seed=seed)
    p = z @ torch.randn(32, 8, generator=draw) @ torch.randn(8, 32, generator=draw)
    p = p.to(dtype)
    found = [spectra_of([p, z], batch) for batch in (2816, 704, 128)]
    lam_p, lam_z = (
        torch.linalg.svdvals(torch.nn.functional.normalize(x.double(), dim=1)).square()
        for x in (p, z)
    )
    lam_p[8:] = 0
    tied = (24**3 - 24) / (32**3 - 32)  # Spearman's correlation is at most the root of 1 - tied
    correlation = scipy.stats.spearmanr((lam_p / lam_z).sqrt(), lam_z).statistic
    expected = correlation / math.sqrt(1 - tied)
    assert expected > 0.9
    for spectra in found:
        assert spectra.leading == 32
        assert spectra.scalars["filter/monotonicity"] == pytest.approx(expected, abs=1e-12)
        assert not spectra.filter_curve[8:].any()


@pytest.mark.parametrize("options", [{}, {"max_dim": 2, "sample": 16}])
def test_collapsed_outputs_have_finite_scalars_and_missing_ones_are_refused(options):
    metric = BranchSpectra(dim=4, **options)
    with pytest.warns(UserWarning, match="before the"), pytest.raises(ValueError, match="no batch"):
        metric.compute()
    with pytest.raises(ValueError, match=r"must have shape \(N, 4\)"):
        metric.update(torch.ones(2, 4), torch.ones(3, 4), torch.ones(2, 4))
    metric.update(*[torch.full((4, 4), math.nan)] * 3)
    with pytest.raises(ValueError, match="no finite row"):
        metric.compute()
    for value, rank in ((0.0, 0), (1.0, 1)):
        metric.reset()
        metric.update(*[torch.full((5, 4), value)] * 3)
        scalars = metric.compute().scalars
        assert np.isfinite(list(scalars.values())).all()
        assert scalars["erank/target"] == pytest.approx(rank)


def test_arrays_of_one_column_keep_their_axis():
    x = features("gaussian", 20, 1)
    arrays = spectra_of([x, x, x]).arrays()
    counts = {"leading", "dimensions", "rows", "sampled"}
    assert all(arrays[name].shape == (1,) for name in arrays.keys() - counts)
    assert all(arrays[name].shape == () for name in counts)


def test_broken_rows_are_left_out_of_every_sum():
    """As if they had not been there, whichever of the outputs is broken."""
    x = [features("gaussian", 20, 6, seed=seed) for seed in range(4)]
    want = BranchSpectra(dim=6)
    want.update(*(part[3:] for part in x))
    x[0][0, 1], x[2][1, :], x[3][2, 5] = math.nan, math.inf, -math.inf
    found = BranchSpectra(dim=6)
    found.update(*x)
    assert int(found.broken) == 3
    ours, clean = found.compute(), want.compute()
    assert ours.rows == 17
    assert ours.scalars == pytest.approx(clean.scalars, rel=1e-9, abs=1e-12)
    for name, array in clean.arrays().items():
        torch.testing.assert_close(ours.arrays()[name], array, equal_nan=True)


def four(n: int, k: int, seed: int = 0) -> list[torch.Tensor]:
    """Online, target, positive and projection of n rows, all four different."""
    kinds = ["1/i", "batchnorm", "1/i", "gaussian"]
    return [features(kind, n, k, seed=seed + i) for i, kind in enumerate(kinds)]


def spectra_of(parts: list[torch.Tensor], batch: int = 1000, **options):
    metric = BranchSpectra(parts[0].shape[1], **options)
    for rows in torch.arange(len(parts[0])).split(batch):
        metric.update(*(part[rows] for part in parts))
    return metric.compute()


def same(a, b, rel: float) -> None:
    """Arrays and scalars of two spectra agree, each array within ``rel`` of its largest entry."""
    # A sample of rows is pairs of views, whatever the rows' order, and has no RankMe.
    differing = a.scalars.keys() ^ b.scalars.keys()
    assert differing <= {"lidar/target", "rankme/online", "rankme/target"}
    for name in a.scalars.keys() & b.scalars.keys():
        assert a.scalars[name] == pytest.approx(b.scalars[name], rel=rel, abs=rel), name
    for name, array in b.arrays().items():
        if name != "sampled":
            assert torch.equal(a.arrays()[name].isfinite(), array.isfinite()), name
            size = float(array.nan_to_num().abs().max())
            torch.testing.assert_close(
                a.arrays()[name], array, rtol=rel, atol=rel * size, equal_nan=True, msg=name
            )


def test_the_papers_m_and_the_weights_against_the_function():
    p, z, z_plus, _ = four(300, 10)
    found = spectra_of([p, z, z_plus], m=3).scalars
    p, z, z_plus = (torch.nn.functional.normalize(x.double(), dim=1) for x in (p, z, z_plus))
    C_p, C_z, C_plus = correlation(p), correlation(z), (z.T @ z_plus + z_plus.T @ z) / 600
    for name, C in (("online_target", C_p), ("target_positive", C_plus)):
        for suffix, m in (("", None), ("_paper_m", 3)):
            for weighted in (False, True):
                key = f"alignment/{name}{'_weighted' * weighted}{suffix}"
                want = float(alignment(C, C_z, m, weighted))
                assert found[key] == pytest.approx(want, rel=1e-9, abs=1e-12), key
    assert found["erank/positive"] == pytest.approx(float(effective_rank(C_plus)))


def test_without_positives_what_needs_them_is_absent():
    p, z, z_plus, y = four(50, 8)
    for options in ({}, {"max_dim": 4, "sample": 64}):
        metric = BranchSpectra(8, **options)
        metric.update(p, z, projection=y)
        bare, whole = metric.compute(), spectra_of([p, z, z_plus, y], **options)
        absent = {name for name in whole.scalars if "positive" in name or "lidar" in name}
        assert len(absent) == 6 + bool(options)
        assert whole.scalars.keys() - bare.scalars.keys() == absent
        assert bare.lam_positive.isnan().all()
        assert bare.ideal_filter.isnan().all()
        assert bare.lam_positive.shape == whole.lam_positive.shape
        assert bare.scalars["erank/gap"] == pytest.approx(whole.scalars["erank/gap"], rel=1e-9)
        metric.update(p, z, z_plus)
        with pytest.raises(ValueError, match="positive always or never"):
            metric.compute()
        metric.reset()
        metric.update(p, z, z_plus)  # another epoch may have them
        assert metric.compute().scalars.keys() == whole.scalars.keys()


@pytest.mark.parametrize(("n", "k"), [(40, 48), (60, 24), (64, 64)])
def test_a_sample_that_holds_every_row_gives_what_matrices_give(n, k):
    """Fewer rows than dimensions, more, and as many; positives that are no permutation."""
    parts = four(n, k)
    found = spectra_of(parts, batch=17, max_dim=8, sample=64)
    want = spectra_of(parts)
    assert found.sampled
    assert not want.sampled
    assert found.rows == n
    assert found.lam_online.shape == (min(64, k),)
    same(found, want, rel=1e-9)


@pytest.mark.parametrize(("n", "k", "b"), [(50, 30, 6), (50, 4, 6), (5, 30, 6)])
def test_low_rank_spectrum_equals_that_of_the_logits(n, k, b):
    h, W = features("1/i", n, b), features("gaussian", k, b, seed=1)
    logits = h.double() @ W.double().T
    want = torch.linalg.svdvals(logits).square() / n
    found = low_rank_spectrum(correlation(h), W)
    assert found.shape == (min(k, b),)
    size = min(n, k, b)
    torch.testing.assert_close(found[:size], want[:size], rtol=1e-9, atol=1e-14)
    assert float(found[size:].sum()) < 1e-14


ROUTES = {"matrices": {}, "rows": {"max_dim": 4, "sample": 200}}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_around_the_mean_directions_and_variance_equal_numpys(route, offset):
    y = features("1/i", 200, 12).double() + offset
    x = torch.nn.functional.normalize(y, dim=1).numpy()
    scalars = spectra_of([y, y, y, y], steps=True, **ROUTES[route]).scalars
    want = ((x - x.mean(0)) ** 2).sum(1).mean() / (x**2).sum(1).mean()
    bound = max(1e-9, 1e-13 / want)  # rounding of the second moment, which the mean makes up
    assert scalars["feature/spread"] == pytest.approx(want, rel=bound)
    assert scalars["erank/centred"] == pytest.approx(numpy_erank(x - x.mean(0)), rel=bound)


def test_around_the_mean_of_each_step_directions_and_variance_equal_numpys():
    y = features("1/i", 480, 12).double() + 3
    x = torch.nn.functional.normalize(y, dim=1).numpy()
    around = np.concatenate([step - step.mean(0) for step in np.split(x, 8)])
    scalars = spectra_of([y, y, y, y], batch=60, steps=True).scalars
    assert scalars["feature/spread"] == pytest.approx((around**2).sum(1).mean(), rel=1e-9)
    assert scalars["erank/centred"] == pytest.approx(numpy_erank(around), rel=1e-9)
    hidden = StepCorrelation(12)
    for step in y.split(60):
        hidden.update(step)
    C, C_means = hidden.compute()
    means = np.stack([step.mean(0) for step in np.split(y.numpy(), 8)])
    np.testing.assert_allclose(C_means, means.T @ means / 8, rtol=1e-12)
    np.testing.assert_allclose(C, y.T @ y / 480, rtol=1e-12)
