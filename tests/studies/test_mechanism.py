"""The arms of the trial have the reference's gap, and nothing else of it where they should not."""

from __future__ import annotations

import json
import math

import pytest
import torch
from conftest import features
from omegaconf import OmegaConf
from support.small_runs import SMALL, run

from rdm_solo.filters import SpectralFilter
from rdm_solo.train import checks, compose
from studies.mechanism import page, verdicts
from studies.mechanism.controls import TARGETS, Truncation, rank_of
from studies.mechanism.plan import DATA, HEAD, MEASURED, OK, SEEDS, SETTINGS
from studies.mechanism.runs import missing, options
from studies.mechanism.speeds import Speeds, slope

SHARED = {"power": True, "rotated": False, "rotated anew": False}


def decaying() -> torch.Tensor:
    """Return a batch whose eigenvalues fall as 1/i, in random directions."""
    x = features("gaussian", 256, 32) * torch.arange(1, 33).rsqrt()
    return x @ torch.linalg.qr(features("gaussian", 32, 32)).Q


@pytest.mark.parametrize("arm", TARGETS)
def test_a_target_arm_has_the_references_gap(arm):
    x = decaying()
    reference = SpectralFilter("target", "pow", p=-0.5)(x)
    out = TARGETS[arm](0)(x)
    assert rank_of(reference) - rank_of(x) > 3
    assert rank_of(out) == pytest.approx(rank_of(reference), rel=1e-3)
    if arm in SHARED:
        assert torch.allclose(out, reference) is SHARED[arm]
        sigma, expected = (torch.linalg.svdvals(each) for each in (out, reference))
        torch.testing.assert_close(sigma, expected, rtol=1e-4, atol=1e-4)


def test_a_rotation_is_drawn_once_or_anew():
    x = decaying()
    once, anew = TARGETS["rotated"](0), TARGETS["rotated anew"](0)
    assert torch.equal(once(x), once(x))
    assert not torch.allclose(anew(x), anew(x))
    assert not torch.allclose(TARGETS["rotated"](1)(x), once(x))


def test_truncation_comes_as_close_to_the_gap_as_whole_directions_allow():
    x = decaying().requires_grad_()
    wanted = rank_of(SpectralFilter("target", "pow", p=-0.5)(x)) - rank_of(x)
    out = Truncation(0)(x)
    kept = int(torch.linalg.matrix_rank(out.detach()))
    gaps = []
    for r in (kept - 1, kept, kept + 1):
        u, sigma, vh = torch.linalg.svd(x.detach(), full_matrices=False)
        gaps.append(rank_of(x) - rank_of((u[:, :r] * sigma[:r]) @ vh[:r]))
    assert 2 < kept < 31
    misses = [abs(gap - wanted) for gap in gaps]
    assert misses[1] == min(misses)
    out.square().sum().backward()  # W is a constant projection: the gradient is 2 x W
    torch.testing.assert_close(x.grad, 2 * out.detach(), rtol=1e-3, atol=1e-4)


def test_a_target_filter_that_keeps_the_largest_directions_lowers_the_rank():
    """So truncation cannot be a target filter with a positive gap."""
    x = decaying()
    for keep in (1, 4, 16, 31):
        out = SpectralFilter("target", "truncate", keep=keep)(x)
        lam = [torch.linalg.svdvals(each.double()).square() for each in (out, x)]
        low, high = (-(q := v[v > 1e-9] / v.sum()) @ q.log() for v in lam)
        assert low < high


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("setting", SETTINGS)
def test_every_planned_run_has_a_valid_config(setting, data):
    cfg = compose(options(setting, data, seed=3))
    checks.check(cfg)
    arms = ("truncation", "rotated", "rotated anew", "noise")
    assert OmegaConf.select(cfg, "callbacks.arm.arm") == (setting if setting in arms else None)


def test_runs_with_a_row_are_not_repeated(tmp_path):
    row = dict.fromkeys(HEAD, "") | {"setting": "both", "data": "angles", "seed": str(SEEDS[1])}
    row |= dict.fromkeys(MEASURED, "50") | {"status": OK}
    everything = missing([])
    assert len(everything) == len(set(everything)) == len(SEEDS) * len(DATA) * len(SETTINGS)
    assert set(everything) - set(missing([row])) == {("both", "angles", SEEDS[1])}
    page.write([row], tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert "| angles | both | 1 | 50.0 |" in text
    assert f"1 of\n{len(everything)} runs are there" in text


@pytest.mark.parametrize("power", [-0.5, 0.0, 0.25, 1.0])
def test_the_slope_is_the_power_of_the_eigenvalue(power):
    x = decaying().double()
    lam, vectors = torch.linalg.eigh(x.mT @ x / len(x))
    after = x + 0.01 * x @ (vectors * lam.pow(power)) @ vectors.mT
    assert slope(x, after) == pytest.approx(power, abs=1e-9)


def test_a_run_writes_the_slope_of_each_chosen_epoch(tmp_path):
    run(tmp_path, *SMALL, "max_epochs=3", callbacks=[Speeds(tmp_path, [2, 3], rows=32)])
    slopes = json.loads((tmp_path / "speeds.json").read_text())
    assert list(slopes) == ["2", "3"]
    assert all(math.isfinite(value) for value in slopes.values())


def table(
    accuracies: dict[str, float], gaps: dict[str, float] | None = None
) -> list[dict[str, str]]:
    """Return rows of all settings and data sets, with noise of up to half a point."""
    return [
        {
            "data": data,
            "setting": setting,
            "seed": str(seed),
            "linear": str(
                accuracies.get(setting, 50.0) + (seed * (1 + len(setting) % 3) % 5 - 2) / 4
            ),
            "gap": str((gaps or {}).get(setting, 4.0)),
        }
        for data in DATA
        for setting in SETTINGS
        for seed in SEEDS
    ]


ALL = dict.fromkeys(("power", *verdicts.MATCHED), 60.0)


@pytest.mark.parametrize(
    ("accuracies", "gaps", "answer"),
    [
        (ALL, {}, "a gap suffices"),
        (ALL | {"noise": 50.0}, {}, "a gap does not suffice"),
        (ALL | {"noise": 50.0}, {"noise": 1.0}, "a gap suffices"),  # its gap was too small
        (ALL | {"noise": 51.0}, {}, "undecided"),
    ],
)
def test_whether_a_gap_is_sufficient(accuracies, gaps, answer):
    said, judged = verdicts.sufficient(table(accuracies, gaps))
    assert said == answer
    assert len(judged) == 15


@pytest.mark.parametrize(
    ("accuracies", "answer"),
    [
        ({}, "a gap is necessary"),
        ({"both": 60.0}, "a gap is not necessary"),
        ({"both": 51.0}, "undecided"),
    ],
)
def test_whether_a_gap_is_necessary(accuracies, answer):
    assert verdicts.necessary(table(accuracies))[0] == answer
