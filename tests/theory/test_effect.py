"""What filters do to a spectrum: kinds on both branches, warnings, and the way to the target's."""

import numpy as np
import pytest
import torch
from support.written_runs import OMEGA, SIGMA

from rdm_solo import filters, theory
from rdm_solo.theory import filter_effect, rank_path


def seen(branch: str, name, p=None, sigma=SIGMA) -> filter_effect.Preview:
    return filter_effect.predict_effect("it", branch, filters.get(name, p), sigma)


@pytest.mark.parametrize(
    ("branch", "name", "p", "own", "online"),
    [
        ("target", "pow", -0.5, "high-pass", "low-pass"),
        ("target", "pow", 0.5, "low-pass", "high-pass"),
        ("online", "pow", 1.0, "low-pass", "low-pass"),
        ("online", "pow", -0.5, "high-pass", "high-pass"),
        ("online", "log1p", None, "low-pass", "low-pass"),
        ("online", "identity", None, "none", "none"),
        ("online", torch.tanh, None, "low-pass", "low-pass"),
    ],
)
def test_kinds_on_both_branches(branch, name, p, own, online):
    effect = seen(branch, name, p, SIGMA / 10)
    assert (effect.own_kind, effect.online_kind) == (own, online)
    wrong = any("points the wrong way" in text for text in effect.warnings)
    assert wrong == (online == "high-pass")
    assert ("as an online filter" in effect.line) == (branch == "target")
    assert (theory.rank_difference(effect.lam_p, effect.lam_z) < -1e-3) == wrong
    h = effect.gain(effect.sigma).abs()
    # Up to a constant g itself, or 1 / h.
    curve = effect.curve * h if branch == "target" else effect.curve / h
    torch.testing.assert_close(curve, curve[0].expand(16), rtol=1e-9, atol=0)


def test_log_is_a_band_filter_across_one_and_says_what_it_depends_on():
    below = seen("online", "log", sigma=SIGMA / 10)  # from 2 to 0.5
    assert below.own_kind == "band-stop"
    assert "negative for 12 of 16 directions" in " ".join(below.warnings)
    above = seen("online", "log")
    assert above.own_kind == "low-pass"
    (text,) = above.warnings
    assert "depends on the filter's batch size" in text
    near = seen("online", "log", sigma=SIGMA / 4)  # 1.25 to 5: half of that crosses 1
    assert "with a quarter of the batch it is band-stop" in near.warnings[0]
    assert not any("batch" in text for text in seen("target", "pow", -0.7).warnings)


def test_an_exponent_below_minus_one_turns_the_order_round():
    effect = seen("target", "pow", -2.0)
    assert "changes the order of the directions" in effect.warnings[0]
    assert (effect.lam_z.diff() <= 0).all()


def test_what_is_no_filter_is_refused():
    for gain, words in (
        (lambda sigma: sigma.log().log(), "NaN or infinity for 13 of 16"),
        (torch.zeros_like, "zero at every singular value"),
        (lambda sigma: sigma[:, None], r"got shape \(16, 1\)"),
    ):
        with pytest.raises(ValueError, match=words):
            filter_effect.predict_effect("it", "online", gain, SIGMA / 10)


@pytest.mark.parametrize(
    ("branch", "name", "p"),
    [
        ("target", "pow", -0.5),
        ("target", "pow", -2.0),
        ("online", "log1p", None),
        ("online", "pow", 3.0),
        ("online", lambda sigma: (9 * sigma / sigma.max()).log1p(), None),  # of all at once
    ],
)
def test_the_relation_is_the_filters_own(branch, name, p):
    effect = seen(branch, name, p)
    lam_p = effect.lam_p if branch == "online" else effect.sigma.square() / SIGMA.square().sum()
    lam_z = filter_effect.relation(effect)(lam_p)
    want = effect.lam_z if p != -2.0 else lam_p**-1
    # By interpolation on a grid for online filters; up to a constant for target ones.
    torch.testing.assert_close(lam_z / lam_z.sum(), want / want.sum(), rtol=1e-3, atol=0)


def test_paths_climb_fall_or_stay():
    ones = torch.ones(16, dtype=torch.float64)

    def path(branch, name, p=None, omega=ones):
        effect = seen(branch, name, p)
        n = 20
        return rank_path.follow(
            effect.lam_p, [filter_effect.relation(effect)] * n, [omega] * n, [0.1] * n, step=0.1
        )

    for branch, name, p in (("target", "pow", -0.5), ("online", "pow", 1.0)):
        up = path(branch, name, p)
        assert (np.diff(up.online) > 0).all()
        assert (up.target >= up.online).all()
    down = path("online", "pow", -0.5)
    assert (np.diff(down.online) < 0).all()
    np.testing.assert_allclose(path("online", "identity").online, up.target[0], rtol=1e-9)
    # Positives far apart: no filter lets the rank fall.
    assert (np.diff(path("online", "identity", omega=OMEGA).online) < 0).all()


def test_eigenvalues_of_zero_are_told_apart_by_rank():
    """Behind a predictor with a bottleneck the online spectrum ends in zeros."""
    lam_p, lam_z = torch.tensor([0.7, 0.3, 0.0, 0.0]), torch.tensor([0.4, 0.3, 0.2, 0.1])
    predicted = rank_path.relation(lam_p, lam_z)(lam_p)
    torch.testing.assert_close(predicted, lam_z.double(), rtol=1e-6, atol=0)
    beyond = rank_path.relation(lam_p, lam_z)(torch.tensor([1.4]))
    assert lam_z[0] < beyond < 1


def test_a_filter_that_falls_within_the_spectrum_has_no_inverse_there():
    """sigma |log sigma| falls between 1/e and 1; both spectra are then paired by rank."""
    effect = seen("online", "log", sigma=torch.linspace(4, 0.5, 32, dtype=torch.float64))
    lam_p, lam_z = (lam.sort(descending=True).values for lam in (effect.lam_p, effect.lam_z))
    torch.testing.assert_close(filter_effect.relation(effect)(lam_p), lam_z, rtol=1e-9, atol=0)


def test_an_online_filter_is_inverted_between_the_previewed_values():
    """Pairing by rank would interpolate linearly, on log axes, between two far values."""
    effect = seen("online", "log1p", sigma=torch.tensor([100.0, 0.1]).double())
    sigma = torch.tensor([30.0, 3.0, 0.3], dtype=torch.float64)
    filtered = (sigma * sigma.log1p()).square()
    total = float((effect.sigma * effect.sigma.log1p()).square().sum())
    expected = sigma.square() / float(effect.sigma.square().sum())
    target = filter_effect.relation(effect)(filtered / total)
    torch.testing.assert_close(target, expected, rtol=1e-3, atol=0)
