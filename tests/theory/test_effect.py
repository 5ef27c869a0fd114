"""What filters do to a spectrum: kinds on both branches, and warnings."""

import pytest
import torch
from support.written_runs import SIGMA

from rdm_solo.filters import get
from rdm_solo.filters.functions import BoundFunction
from rdm_solo.theory import rank_difference
from rdm_solo.theory.filter_effect import predict_effect


def effect_of(branch, name, p=None, sigma=SIGMA):
    return predict_effect("it", branch, get(name, p), sigma)


@pytest.mark.parametrize(
    ("branch", "name", "p", "own", "online"),
    [
        ("target", "pow", -0.5, "high-pass", "low-pass"),
        ("target", "pow", 0.5, "low-pass", "high-pass"),
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
    assert is_wrong == ("points the wrong way" in str(effect.warnings))
    gap = rank_difference(effect.lam_p, effect.lam_z)
    assert is_wrong == (gap < -1e-3)
    assert ("as an online filter" in effect.line) == (branch == "target")
    # Up to a constant, the curve is g of an online filter, and 1 / h of a target filter.
    powers = {"online": 1, "target": -1, "both": 0}
    ratio = effect.curve / effect.gain ** powers[branch]
    assert ratio.max() <= ratio.min() * (1 + 1e-9)


def test_log_is_a_band_filter_across_one_and_says_what_it_depends_on():
    below = effect_of("online", "log", sigma=SIGMA / 10)  # from 2 to 0.5
    assert below.own_kind == "band-stop"
    assert "negative for 12 of 16 directions" in str(below.warnings)
    above = effect_of("online", "log")
    assert above.own_kind == "low-pass"
    (warning,) = above.warnings
    assert "depends on the filter's batch size" in warning
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
    function = BoundFunction(gain, "it")
    with pytest.raises(ValueError, match="singular value"):
        predict_effect("it", "online", function, SIGMA / 10)
