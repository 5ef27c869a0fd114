"""The arms of the trial have the reference's gap, and its callback measures the rates."""

import statistics

import pandas as pd
import pytest
import torch
from conftest import features
from support.small_runs import SMALL, rows, run

from rdm_solo.filters import SpectralFilter
from studies.intervals import difference
from studies.mechanism.controls import TARGETS, Truncation, rank_of
from studies.mechanism.figures import figure
from studies.mechanism.page import STUDY
from studies.mechanism.plan import PLAN, SEEDS
from studies.mechanism.runs import best_rate
from studies.mechanism.speeds import slope
from studies.mechanism.verdicts import MATCHED, VARIANTS, pooled, runs_of


@pytest.fixture
def x():
    """Return a batch whose eigenvalues fall as 1/i, in random directions."""
    sigma = torch.arange(1, 33).rsqrt()
    directions = torch.linalg.qr(features("gaussian", 32, 32)).Q
    return features("gaussian", 256, 32) * sigma @ directions


@pytest.fixture
def reference(x):
    """Return the batch, filtered by target σ^-0.5."""
    return SpectralFilter("target", "pow", p=-0.5)(x)


@pytest.mark.parametrize("arm", TARGETS)
def test_a_target_arm_has_the_references_gap(arm, x, reference):
    out = TARGETS[arm](0)(x)
    assert rank_of(reference) - rank_of(x) > 3
    assert rank_of(out) == pytest.approx(rank_of(reference), rel=1e-3)
    if arm.startswith("rotated"):
        assert not torch.allclose(out, reference)
        actual = torch.linalg.svdvals(out)
        expected = torch.linalg.svdvals(reference)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_a_rotation_is_drawn_once_or_anew(x):
    once = TARGETS["rotated"](0)
    anew = TARGETS["rotated anew"](0)
    another_seed = TARGETS["rotated"](1)
    assert torch.equal(once(x), once(x))
    assert not torch.allclose(anew(x), anew(x))
    assert not torch.allclose(another_seed(x), once(x))


def test_truncation_comes_as_close_to_the_gap_as_whole_directions_allow(x, reference):
    leaf = x.clone().requires_grad_()
    out = Truncation(0)(leaf)
    kept = int(torch.linalg.matrix_rank(out.detach()))
    assert 2 < kept < 31
    u, sigma, vh = torch.linalg.svd(x, full_matrices=False)
    misses = []
    for r in (kept - 1, kept, kept + 1):
        truncated = u[:, :r] * sigma[:r] @ vh[:r]
        gap = rank_of(x) - rank_of(truncated)
        expected = rank_of(reference) - rank_of(x)
        misses.append(abs(gap - expected))
    assert misses[1] == min(misses)
    out.square().sum().backward()  # W is a constant projection: the gradient is 2 x W
    torch.testing.assert_close(leaf.grad, 2 * out.detach(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("power", [-0.5, 0.0, 0.25, 1.0])
def test_the_slope_is_the_power_of_the_eigenvalue(power, x):
    x = x.double()
    lam, vectors = torch.linalg.eigh(x.mT @ x / len(x))
    after = x + 0.01 * x @ (vectors * lam.pow(power)) @ vectors.mT
    assert slope(x, after) == pytest.approx(power, abs=1e-9)


def test_a_run_logs_the_slope_of_each_chosen_epoch(tmp_path):
    speeds = "+callbacks.speeds"
    options = [f"{speeds}._target_=studies.mechanism.speeds.Speeds", f"{speeds}.rows=32"]
    run(tmp_path, *SMALL, "max_epochs=5", *options, f"{speeds}.epochs=[3,5]")
    epochs = [row["epoch"] for row in rows(tmp_path) if "rate/slope" in row]
    assert epochs == [3, 5]


def test_pooled_differences_have_one_value_for_each_seed():
    """A seed's differences on both variants, at all batch sizes, are not independent."""
    runs = runs_of(STUDY.read(), SEEDS)
    settings = []
    by_seed = {seed: [] for seed in SEEDS}
    for batch in (16, 64, 256):
        first, other = f"batch {batch}, momentum 0.998", f"batch {batch}, momentum 0"
        settings.append([first, other])
        for data in VARIANTS:
            for seed in SEEDS:
                accuracies = [runs.loc[name, data, 30, seed]["linear"] for name in (first, other)]
                by_seed[seed].append(accuracies[0] - accuracies[1])
    expected = difference([statistics.fmean(values) for values in by_seed.values()])
    assert pooled(runs, settings, "linear") == pytest.approx(expected)


def test_equal_accuracies_choose_the_smaller_rate():
    """The means of (97.9, 98.6) and of (98.2, 98.2) are equal, but for rounding."""
    means = [98.25783999999999, 98.25784000000000, 98.25783999999999]
    tried = pd.Series(means, ["22.0", "8.0", "2.8"])
    assert best_rate(tried) == "2.8"


def test_a_figure_has_the_difference_of_each_comparison():
    runs = runs_of(STUDY.read(), SEEDS)
    panels = PLAN["questions"]["sufficient"]["panels"]
    axes = figure(runs, panels).axes[0]
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    actual = [dot.get_xdata()[0] for dot in dots]
    means = runs["linear"].groupby(["setting", "data"], observed=True).mean().unstack()
    expected = means.loc[["power", *MATCHED]] - means.loc["identity"]
    assert actual == pytest.approx(expected.to_numpy().flatten())
