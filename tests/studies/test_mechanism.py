"""The arms of the trial have the reference's gap, and its answers follow the plan's rules."""

from collections.abc import Mapping

import pandas as pd
import pytest
import torch
from conftest import features
from hydra.utils import instantiate
from omegaconf import OmegaConf

from rdm_solo.filters import SpectralFilter
from rdm_solo.train import checks, compose
from studies.mechanism import plan, verdicts
from studies.mechanism.controls import TARGETS, Arm, Truncation, rank_of
from studies.mechanism.figures import figure
from studies.mechanism.page import STUDY
from studies.mechanism.plan import DATA, PLAN, SEEDS, SETTINGS, TUNING, Cell, Run
from studies.mechanism.runs import best_rate, measure, options, tuned_accuracies
from studies.mechanism.verdicts import FILTERS, MATCHED, runs_of
from studies.training import OK

COLUMNS = list(STUDY.read().columns)


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
    if arm.startswith("rotated"):
        assert not torch.allclose(out, reference)
        actual, expected = torch.linalg.svdvals(out), torch.linalg.svdvals(reference)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_an_unknown_arm_is_not_trained_as_identity():
    with pytest.raises(KeyError):
        Arm("rotate", 0).setup(None, None, "fit")


def test_a_rotation_is_drawn_once_or_anew():
    x = decaying()
    once, anew = TARGETS["rotated"](0), TARGETS["rotated anew"](0)
    assert torch.equal(once(x), once(x))
    assert not torch.allclose(anew(x), anew(x))
    assert not torch.allclose(TARGETS["rotated"](1)(x), once(x))


def test_truncation_comes_as_close_to_the_gap_as_whole_directions_allow():
    x = decaying().requires_grad_()
    expected = rank_of(SpectralFilter("target", "pow", p=-0.5)(x)) - rank_of(x)
    out = Truncation(0)(x)
    kept = int(torch.linalg.matrix_rank(out.detach()))
    assert 2 < kept < 31
    u, sigma, vh = torch.linalg.svd(x.detach(), full_matrices=False)
    misses = []
    for r in (kept - 1, kept, kept + 1):
        gap = rank_of(x) - rank_of((u[:, :r] * sigma[:r]) @ vh[:r])
        misses.append(abs(gap - expected))
    assert misses[1] == min(misses)
    out.square().sum().backward()  # W is a constant projection: the gradient is 2 x W
    torch.testing.assert_close(x.grad, 2 * out.detach(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("keep", [1, 4, 16, 31])
def test_a_target_filter_that_keeps_the_largest_directions_lowers_the_rank(keep):
    """So truncation cannot be a target filter with a positive gap."""
    x = decaying()
    entropies = []
    for rows in (SpectralFilter("target", "truncate", keep=keep)(x), x):
        lam = torch.linalg.svdvals(rows.double()).square()
        q = lam[lam > 1e-9] / lam.sum()
        entropies.append(-q @ q.log())
    assert entropies[0] < entropies[1]


ALL_CELLS = set()
for question in PLAN["settings"]:
    ALL_CELLS |= set(plan.cells(question))


@pytest.mark.parametrize("cell", sorted(ALL_CELLS), ids=lambda cell: " ".join(map(str, cell)))
def test_every_planned_run_has_a_valid_config(cell):
    cfg = compose(options(Run(*cell, seed=3, rate="0.3")))
    checks.check(cfg)
    arm = OmegaConf.select(cfg, "callbacks.arm.arm")
    assert arm == (cell.setting if cell.setting in MATCHED else None)
    assert cfg.max_epochs == cfg.callbacks.probe.epochs[-1] == cell.epochs
    assert cfg.optimizer.lr == 0.3
    assert ("speeds" in cfg.callbacks) == (cell in plan.cells("rate"))


def test_a_setting_of_several_questions_has_the_same_options_in_each():
    for settings in PLAN["settings"].values():
        assert settings.items() <= SETTINGS.items()


def row_of(run: Run, **measured: float) -> dict[str, object]:
    values = dict.fromkeys(COLUMNS, 50.0)
    return {**values, **run._asdict(), "status": OK, **measured}


def test_rates_are_tried_until_the_best_has_no_untried_neighbour():
    """A peak at the edge of a grid has its neighbour tried; of equal rates, the smallest wins."""
    peaks = {"textures": "1.0", "angles": "2.8"}
    rows = []
    table = pd.DataFrame(columns=COLUMNS)
    while todo := STUDY.missing(table):
        rows += [row_of(run, linear=60 if peaks.get(run.data) == run.rate else 50) for run in todo]
        table = pd.DataFrame(rows).astype(str)
    tuning = table["seed"].isin(list(map(str, TUNING)))
    first = ["0.125", "0.35", "1.0", "2.8"]
    tried = {"digits": ["0.016", "0.044", *first], "textures": first, "angles": [*first, "8.0"]}
    chosen = {"digits": "0.016", **peaks}
    for data in DATA:
        rates = table[(table["setting"] == "BYOL -1") & (table["data"] == data)]["rate"]
        assert sorted(rates[tuning].unique()) == tried[data]
        assert rates[~tuning].unique() == [chosen[data]]
        rates = table[(table["setting"] == "mse 1") & (table["data"] == data)]["rate"]
        assert rates[~tuning].unique() == [peaks.get(data, "0.25") if data != "angles" else "0.25"]
    counted = set(table[~tuning][["setting", "data", "epochs"]].itertuples(index=False, name=None))
    assert counted == {tuple(map(str, cell)) for cell in ALL_CELLS}
    assert set(table["seed"].astype(int)) == {*SEEDS, *TUNING, *PLAN["second"]["seeds"]}


def test_a_rate_that_diverges_is_not_chosen():
    cell = Cell("SimSiam -1", "digits")
    rows = []
    for seed in TUNING:
        rows += [row_of(Run(*cell, seed, rate), linear=40) for rate in ("1.0", "2.8")]
        rows.append(row_of(Run(*cell, seed, "8.0"), linear=70) | {"status": "x"})
    accuracies = tuned_accuracies(pd.DataFrame(rows).astype(str))
    assert best_rate(accuracies[cell]) == "1.0"


@pytest.mark.parametrize("data", DATA)
def test_rates_are_chosen_on_training_images_only(data):
    run = Run("SimSiam -0.5", data, 30, TUNING[0], "0.5")
    chosen = instantiate(compose(options(run)).dataset.source)
    counted = instantiate(compose(options(run._replace(seed=SEEDS[0]))).dataset.source)
    assert len(chosen.val) == len(counted.train) // 5
    train, val = (set(map(bytes, part.images.numpy())) for part in (chosen.train, chosen.val))
    assert train | val == set(map(bytes, counted.train.images.numpy()))
    assert not train & val


def runs(**columns: Mapping[object, float]) -> pd.DataFrame:
    """Return runs of all cells with values of 50, plus noise of up to half a point.

    Other values are given by column, and by cell, setting and data set, or setting.
    """
    rows = []
    for cell in ALL_CELLS:
        for seed in SEEDS:
            noise = (seed * (1 + len(cell.setting) % 3) % 5 - 2) / 4
            measured = dict.fromkeys(("linear", "erank", "gap", "slope"), 50.0 + noise)
            for column, values in columns.items():
                for key in (cell.setting, (cell.setting, cell.data), cell):
                    if key in values:
                        measured[column] = values[key] + noise
            rows.append(row_of(Run(*cell, seed), **measured))
    return runs_of(pd.DataFrame(rows).astype(str), SEEDS)


ALL = dict.fromkeys(("power", *MATCHED), 60.0)


@pytest.mark.parametrize(
    ("accuracies", "gaps", "answer"),
    [
        (ALL, {}, "a gap suffices."),
        (ALL | {"noise": 50.0}, {}, "a gap does not suffice."),
        (ALL | {"noise": 50.0}, {"noise": 10.0}, "a gap suffices."),  # its gap was too small
        (ALL | {"noise": 51.0}, {}, "undecided."),
        (ALL | {("noise", "textures"): 50.0}, {}, "undecided."),  # fails on one variant only
        (ALL, dict.fromkeys(MATCHED, 10.0), "undecided."),  # no arm is matched
    ],
)
def test_whether_a_gap_is_sufficient(accuracies, gaps, answer):
    actual, tests = verdicts.sufficient(runs(linear=accuracies, gap=gaps))
    assert actual == answer
    assert len(tests) == 15


@pytest.mark.parametrize(
    ("accuracies", "answer"),
    [
        ({}, "a gap is necessary"),
        ({"both": 60.0}, "a gap is not necessary"),
        ({"both": 51.0}, "undecided"),
    ],
)
def test_whether_a_gap_is_necessary(accuracies, answer):
    actual, tests = verdicts.necessary(runs(linear=accuracies, erank={"both": 60.0}))
    assert actual == f"{answer} by accuracy, a gap is not necessary by rank."
    assert len(tests) == 12


FASTER = {"mse 0.25": 52.0, "mse 0.5": 52.0, "mse 1": 52.0}
RATES, BEYOND = "the loss changes the rates", "rate matters beyond the gap"
NEITHER = "no difference beyond the gap was found"


@pytest.mark.parametrize(
    ("slope", "rank", "answer"),
    [
        ({}, {}, NEITHER),
        (FASTER, {}, RATES),
        (FASTER | {"mse 1": 48.0}, {}, NEITHER),
        (FASTER | {("mse 1", "angles"): 50.0}, {}, NEITHER),
        ({}, FASTER | {"mse 1": 48.0}, BEYOND),
        ({}, {"mse 0.5": 52.0, "mse 1": 48.0}, NEITHER),
        (FASTER, FASTER, f"{RATES} and {BEYOND}"),
    ],
)
def test_whether_the_loss_changes_rates_and_rank(slope, rank, answer):
    actual, tests = verdicts.rate(runs(slope=slope, erank=rank))
    assert actual == f"by the plan's rule, {answer}."
    assert len(tests) == 18


def test_at_which_batch_sizes_a_running_spectrum_differs():
    assert verdicts.spectrum(runs())[0] == "no difference was found."
    accuracies = {
        "batch 16, momentum 0.5": 52.0,
        "batch 64, momentum 0.998": 48.0,
        ("batch 256, momentum 0.5", "textures"): 52.0,  # one variant only
    }
    actual, _ = verdicts.spectrum(runs(linear=accuracies))
    assert actual == "batch 16: momentum 0.5 is better; batch 64: momentum 0.998 is worse."


def test_how_fixed_filters_compare_over_complete_schedules():
    accuracies = {
        Cell("SimSiam -0.5", "digits", 10): 53.0,
        Cell("SimSiam -0.5", "digits", 30): 51.5,
        Cell("BYOL -0.5", "digits", 100): 52.0,
        Cell("BYOL -0.5", "textures"): 48.0,
        Cell("BYOL -0.5", "angles"): 49.5,  # below, but within the margin
    }
    answer, tests = verdicts.schedule(runs(linear=accuracies))
    simsiam, byol = answer.split(" BYOL: ")
    assert "superior on digits (10, 30), not inferior on digits (100)" in simsiam
    assert simsiam.endswith("its advantage shrinks with longer training.")
    assert "inferior on textures (30), not inferior on angles (30)" in byol
    assert byol.endswith("its advantage grows with longer training.")
    assert "no change was shown" in verdicts.schedule(runs())[0]
    assert len(tests) == 2 * 5 * 2 + 2
    slope = tests[tests["other"] == "slope"]["mean"].iloc[0]
    assert slope == pytest.approx(-3 / torch.tensor(10.0).log().item(), abs=0.2)


@pytest.mark.parametrize(
    ("accuracies", "answer"),
    [
        ({"BYOL -1": 53.0}, "use σ^-1"),
        ({("BYOL -1", "textures"): 53.0}, "(within a point): σ^-1"),  # equal on the other variant
        ({"BYOL -1": 53.0, "BYOL -0.3": 53.0}, "(within a point): σ^-0.3, σ^-1"),
        ({("BYOL -1", "textures"): 53.0, ("BYOL -0.3", "angles"): 53.0}, "point): none"),
        ({}, "(within a point): learnable, σ^-0.3, σ^-0.5, σ^-1"),
    ],
)
def test_which_filter_is_recommended(accuracies, answer):
    actual, tests = verdicts.recommended(runs(linear=accuracies))
    simsiam, byol = actual.split(" BYOL: ")
    assert byol.endswith(f"{answer}.")
    assert "none is significantly best" in simsiam
    assert len(tests) == 2 * 2 * len(FILTERS) * (len(FILTERS) - 1) // 2


def test_a_run_becomes_a_row():
    row = measure("SimSiam -0.5", "digits", 10, TUNING[0], "0.5")
    assert set(row) == {*COLUMNS} - {"slope"}
    assert row["status"] == OK
    assert float(row["linear"]) > float(row["linear untrained"])


def test_a_figure_has_the_difference_and_interval_of_each_comparison():
    panels = PLAN["questions"]["sufficient"]["panels"][:1]
    drawing = figure(runs(linear={"power": 60.0, "noise": 48.0}), panels)
    (accuracy,) = drawing.axes
    dots = [line for line in accuracy.lines if line.get_marker() == "o"]
    assert len(dots) == 5 * len(DATA)
    means = sorted(round(float(dot.get_xdata()[0]), 3) for dot in dots)
    assert (means[0], means[-1]) == (-2.0, 10.0)
    names = [label.get_text() for label in accuracy.get_yticklabels()]
    assert names[1:] == MATCHED
