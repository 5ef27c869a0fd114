"""Effective rank, curves and alignment against NumPy, and as properties."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch
from conftest import features
from hypothesis import given, settings
from hypothesis import strategies as st

from rdm_solo.filters import SpectralFilter
from rdm_solo.spectra import (
    BranchSpectra,
    alignment,
    correlation,
    effective_rank,
    filter_curve,
    leading,
    spearman,
)


def numpy_erank(x: np.ndarray) -> float:
    """From singular values, in NumPy: another route to the same number."""
    lam = np.linalg.svd(x.astype(np.float64), compute_uv=False) ** 2
    q = lam / lam.sum()
    q = q[q > 0]
    return float(np.exp(-(q * np.log(q)).sum()))


@pytest.mark.parametrize(("n", "k"), [(500, 20), (20, 50)])
def test_effective_rank_equals_numpys(n, k):
    x = features("1/i", n, k)
    want = numpy_erank(x.numpy())
    C = correlation(x)
    assert float(effective_rank(C)) == pytest.approx(want, rel=1e-9)
    assert float(effective_rank(torch.linalg.eigvalsh(C))) == pytest.approx(want, rel=1e-9)


def test_effective_rank_is_that_of_eigenvalues_not_singular_values():
    lam = torch.tensor([4.0, 1.0])
    assert float(effective_rank(lam)) == pytest.approx(np.exp(0.5004024), rel=1e-6)
    assert float(effective_rank(lam)) < float(effective_rank(lam.sqrt()))


def test_effective_rank_at_the_ends():
    assert float(effective_rank(torch.ones(7))) == pytest.approx(7)
    assert float(effective_rank(torch.tensor([1.0, 0.0, 0.0]))) == pytest.approx(1)
    assert float(effective_rank(torch.zeros(3))) == 0
    with pytest.raises(ValueError, match="square matrix"):
        effective_rank(torch.zeros(2, 3))


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    function=st.sampled_from(["log1p", "log1p_sq", "pow", "sqrt"]),
    wide=st.booleans(),
)
def test_a_low_pass_filter_never_raises_the_effective_rank(seed, function, wide):
    """Theorem 3, on what the filter itself puts out."""
    x = features("1/i", *((10, 24) if wide else (24, 10)), seed=seed)
    name, p = {"sqrt": (torch.sqrt, None), "pow": ("pow", 0.7)}.get(function, (function, None))
    filtered = SpectralFilter("online", name, p)(x)
    assert effective_rank(correlation(filtered)) < effective_rank(correlation(x))
    raised = SpectralFilter("target", "pow", -0.5)(x)
    assert effective_rank(correlation(raised)) > effective_rank(correlation(x))


def test_the_curve_of_a_filtered_batch_is_the_filters_own():
    """Lemma 2: sqrt(lam_p / lam_z) gives back g, up to the 1/N of the eigenvalues."""
    x = features("1/i", 60, 12)
    sigma = torch.linalg.svdvals(x.double())
    out = SpectralFilter("online", "log1p")(x)
    lam_p, lam_z = (torch.linalg.eigvalsh(correlation(y)).flip(0) for y in (out, x))
    torch.testing.assert_close(filter_curve(lam_p, lam_z), sigma.log1p(), rtol=1e-5, atol=0)


def test_the_curve_is_undefined_where_the_target_has_nothing():
    curve = filter_curve(torch.tensor([1.0, 1.0]), torch.tensor([1.0, 1e-30]))
    assert curve[0] == 1
    assert curve[1].isnan()


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


def test_leading_directions_hold_more_than_the_share():
    lam = torch.tensor([0.5, 0.3, 0.2, 1e-6])
    assert leading(lam) == 3
    assert leading(torch.ones(5), share=0.6) == 3
    assert leading(torch.zeros(4)) == 1


@pytest.mark.parametrize("ties", [False, True])
def test_spearman_equals_scipys(ties):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=30), rng.normal(size=30)
    if ties:
        a, b = a.round(), b.round()
    want = scipy.stats.spearmanr(a, b).statistic
    assert float(spearman(torch.tensor(a), torch.tensor(b))) == pytest.approx(want)


def test_a_flat_curve_has_no_order():
    flat = torch.ones(10) + 1e-9 * torch.randn(10)
    assert float(spearman(flat, torch.arange(10.0))) == 0


def test_branch_spectra_over_batches_equal_the_definitions():
    unit = torch.nn.functional.normalize
    p, z, z_plus, y = (features(k, 90, 12, seed=i) for i, k in enumerate(["1/i", "gaussian"] * 2))
    metric = BranchSpectra(dim=12)
    for rows in torch.arange(90).split(40):
        metric.update(p[rows], z[rows], z_plus[rows], y[rows])
    spectra = metric.compute()
    p, z, z_plus, y = (unit(v.double(), dim=1) for v in (p, z, z_plus, y))
    C_p, C_z = correlation(p), correlation(z)
    C_plus = (z.T @ z_plus + z_plus.T @ z) / 180
    want = {
        "erank/online": numpy_erank(p.numpy()),
        "erank/target": numpy_erank(z.numpy()),
        "erank/gap": numpy_erank(z.numpy()) - numpy_erank(p.numpy()),
        "erank/projection": numpy_erank(y.numpy()),
        "alignment/online_target": alignment(C_p, C_z),
        "alignment/online_target_weighted": alignment(C_p, C_z, weighted=True),
        "alignment/target_positive": alignment(C_plus, C_z),
        "feature/variance": (y - y.mean(0)).square().sum(1).mean(),
    }
    for name, value in want.items():
        assert spectra.scalars[name] == pytest.approx(float(value), rel=1e-8), name
    lam, u = torch.linalg.eigh(C_z)
    directional = torch.stack([(v @ C_p @ v / value).sqrt() for v, value in zip(u.T, lam)])
    torch.testing.assert_close(spectra.curve_directional, directional.flip(0))
    curve = (spectra.lam_online / spectra.lam_target).sqrt()
    want_order = scipy.stats.spearmanr(curve, spectra.lam_target).statistic
    assert spectra.scalars["filter/monotonicity"] == pytest.approx(want_order)
    assert spectra.rows == 90


def test_equal_branches_have_no_gap_and_no_order():
    z = features("1/i", 64, 8)
    metric = BranchSpectra(dim=8)
    metric.update(z, z, z)
    scalars = metric.compute().scalars
    assert scalars["erank/gap"] == pytest.approx(0, abs=1e-9)
    assert scalars["filter/monotonicity"] == 0
    assert scalars["alignment/online_target"] == pytest.approx(1)


def test_branch_spectra_survive_a_collapse_and_say_what_is_wrong():
    metric = BranchSpectra(dim=4)
    with pytest.warns(UserWarning, match="before the"), pytest.raises(ValueError, match="no batch"):
        metric.compute()
    with pytest.raises(ValueError, match=r"target must have shape \(N, 4\)"):
        metric.update(torch.ones(2, 4), torch.ones(3, 4), torch.ones(2, 4))
    metric.update(torch.zeros(5, 4), torch.zeros(5, 4), torch.zeros(5, 4))
    scalars = metric.compute().scalars
    assert all(np.isfinite(list(scalars.values())))
    assert scalars["erank/target"] == 0
    assert metric.compute().curve.isnan().all()


def test_branch_spectra_are_not_saved_and_do_not_follow_half():
    metric = BranchSpectra(dim=3).half()
    assert metric.sum_online.dtype == torch.float64
    assert not metric.state_dict()


class TestBrokenRows:
    def test_they_are_left_out_of_every_sum(self):
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

    def test_nothing_else_is_an_error_that_says_so(self):
        metric = BranchSpectra(dim=3)
        broken = torch.full((4, 3), math.nan)
        metric.update(broken, broken, broken)
        with pytest.raises(ValueError, match="no finite row"):
            metric.compute()
