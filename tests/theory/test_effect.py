"""What filters do to a spectrum: kinds on both branches, and warnings."""

import pytest
import torch
from support.written_runs import SIGMA

from rdm_solo import filters, theory
from rdm_solo.theory import filter_effect


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
