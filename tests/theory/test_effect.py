"""What filters do to a spectrum: kinds on both branches, and warnings."""

import pytest
import torch
from support.written_runs import SIGMA

from rdm_solo import filters, theory
from rdm_solo.theory.filter_effect import Preview, predict_effect


def effect_of(branch: str, name, p=None, sigma=SIGMA) -> Preview:
    function = filters.get(name, p)
    return predict_effect("it", branch, function, sigma)


@pytest.mark.parametrize(
    ("branch", "name", "p", "own", "online"),
    [
        ("target", "pow", -0.5, "high-pass", "low-pass"),
        ("target", "pow", 0.5, "low-pass", "high-pass"),
        ("online", "pow", 1.0, "low-pass", "low-pass"),
        ("online", "identity", None, "none", "none"),
        ("both", "pow", 1.0, "low-pass", "none"),
        ("online", torch.tanh, None, "low-pass", "low-pass"),
    ],
)
def test_kinds_on_both_branches(branch, name, p, own, online):
    effect = effect_of(branch, name, p, SIGMA / 10)
    assert effect.own_kind == own
    assert effect.online_kind == online
    is_wrong = online == "high-pass"
    assert is_wrong == ("points the wrong way" in " ".join(effect.warnings))
    assert is_wrong == (theory.rank_difference(effect.lam_p, effect.lam_z) < -1e-3)
    assert ("as an online filter" in effect.line) == (branch == "target")
    # Up to a constant, the curve is g of an online filter, and 1 / h of a target filter.
    powers = {"online": 1, "target": -1, "both": 0}
    curve = effect.curve / effect.gain ** powers[branch]
    torch.testing.assert_close(curve, curve[0].expand(16), rtol=1e-9, atol=0)


def test_log_is_a_band_filter_across_one_and_says_what_it_depends_on():
    below = effect_of("online", "log", sigma=SIGMA / 10)  # from 2 to 0.5
    assert below.own_kind == "band-stop"
    assert "negative for 12 of 16 directions" in " ".join(below.warnings)
    above = effect_of("online", "log")
    assert above.own_kind == "low-pass"
    (text,) = above.warnings
    assert "depends on the filter's batch size" in text
    near = effect_of("online", "log", sigma=SIGMA / 4)  # 1.25 to 5: half of that crosses 1
    assert "a quarter of the batch it is band-stop" in near.warnings[0]
    assert effect_of("target", "pow", -0.7).warnings == []


def test_a_function_of_the_rows_does_not_depend_on_the_batch_size():
    """With 4 times the rows, sigma doubles: sigma / sqrt(rows) stays the same."""

    def shrink(sigma, rows):
        return sigma / (sigma + rows**0.5)

    assert effect_of("online", shrink).warnings == []


def test_an_exponent_below_minus_one_reverses_the_order():
    effect = effect_of("target", "pow", -2.0)
    assert "changes the order of the directions" in effect.warnings[0]
    assert (effect.lam_z.diff() <= 0).all()


@pytest.mark.parametrize("gain", [lambda sigma: sigma.log().log(), torch.zeros_like])
def test_a_function_that_is_not_finite_or_zero_everywhere_is_refused(gain):
    function = filters.functions.BoundFunction(gain, "it")
    with pytest.raises(ValueError, match="singular value"):
        predict_effect("it", "online", function, SIGMA / 10)
