"""The arms of the trial have the reference's gap, and nothing else of it where they should not."""

import math
from collections.abc import Mapping

import pytest
import torch
from conftest import ROOT, features
from hydra.utils import instantiate
from omegaconf import OmegaConf

from rdm_solo.filters import SpectralFilter
from rdm_solo.train import checks, compose
from studies.mechanism import page, plan, verdicts
from studies.mechanism.controls import TARGETS, Arm, Truncation, rank_of
from studies.mechanism.figures import PANELS, figure
from studies.mechanism.plan import DATA, HEAD, OK, PLAN, SEEDS, SETTINGS, TUNING, Cell, Run
from studies.mechanism.runs import cell_of, measure, missing, options, rate_of
from studies.table import read


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
        sigma, expected = (torch.linalg.svdvals(each) for each in (out, reference))
        torch.testing.assert_close(sigma, expected, rtol=1e-4, atol=1e-4)


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


ALL_CELLS = [cell for question in PLAN["settings"] for cell in plan.cells(question)]


@pytest.mark.parametrize("cell", sorted(set(ALL_CELLS)), ids=lambda cell: " ".join(map(str, cell)))
def test_every_planned_run_has_a_valid_config(cell):
    cfg = compose(options(Run(cell, seed=3, rate="0.3")))
    checks.check(cfg)
    arms = ("truncation", "rotated", "rotated anew", "noise")
    arm = OmegaConf.select(cfg, "callbacks.arm.arm")
    assert arm == (cell.setting if cell.setting in arms else None)
    assert cfg.max_epochs == cfg.callbacks.probe.epochs[-1] == cell.epochs
    assert cfg.optimizer.lr == 0.3
    assert ("speeds" in cfg.callbacks) == (cell in plan.cells("rate"))


def test_a_setting_of_several_questions_has_the_same_options_in_each():
    for settings in PLAN["settings"].values():
        assert settings.items() <= SETTINGS.items()


def row_of(run: Run, **measured: float) -> dict[str, str]:
    row = run.cell._asdict() | {"seed": run.seed, "rate": run.rate, "status": OK}
    return {key: str(value) for key, value in (row | measured).items()}


def test_stages_are_trained_in_turn_each_with_the_rates_that_were_chosen():
    """A peak at the edge of a grid has its neighbour tried; of equal rates, the smallest wins."""
    peaks = {"textures": "1.0", "angles": "2.8"}
    rows, turns = [], []
    while todo := missing(rows):
        turns.append(todo)
        rows += [
            row_of(run, linear=60 if peaks.get(run.cell.data) == run.rate else 50) for run in todo
        ]
    tuning = [turn for turn in turns if {run.seed for run in turn} == set(TUNING)]
    assert [len(turn) for turn in tuning] == [
        6 * 3 * 4 * 2,  # "rate"
        8 * 5 * 4 * 2,  # "schedule"
        8 * 4 * 2,  # 8.0 on angles, 0.044 on the digits
        8 * 3 * 2,  # 0.016 on the digits
        9 * 2 * 4 * 2,  # "second"
        9 * 2,  # 8.0 on angles
    ]
    assert {run.rate for run in tuning[2] if run.cell.data == "angles"} == {"8.0"}
    assert len(turns) == len(plan.stages()) + len(tuning)
    counted = {run for turn in turns for run in turn if run.seed not in TUNING}
    assert counted == {
        Run(
            cell,
            seed,
            peaks[cell.data] if peaks.get(cell.data) in grid else min(grid, key=float, default=""),
        )
        for stage in plan.stages().values()
        for grid in [stage.wider or stage.rates]
        for cell in stage.cells
        for seed in stage.seeds
    }


def test_a_rate_that_diverges_is_not_chosen():
    cell = Cell("SimSiam -1", "digits")
    rows = [row_of(Run(cell, seed, rate), linear=40) for seed in TUNING for rate in ("1.0", "2.8")]
    diverged = [row_of(Run(cell, seed, "8.0"), linear=70) | {"status": "x"} for seed in TUNING]
    assert rate_of([*rows, *diverged], cell) == "1.0"


@pytest.mark.parametrize("data", DATA)
def test_rates_are_chosen_on_training_images_only(data):
    run = Run(Cell("SimSiam -0.5", data), TUNING[0], "0.5")
    chosen, counted = (
        instantiate(compose(options(each)).dataset.source)
        for each in (run, run._replace(seed=SEEDS[0]))
    )
    assert len(chosen.val) == len(counted.train) // 5
    images = [set(map(bytes, part.images.numpy())) for part in (chosen.train, chosen.val)]
    assert images[0] | images[1] == set(map(bytes, counted.train.images.numpy()))
    assert not images[0] & images[1]


def table(
    accuracies: Mapping[object, float], column: str = "linear", **others: Mapping[str, float]
) -> list[dict[str, str]]:
    """Return rows of all cells, with noise of up to half a point.

    Keys are cells, settings, or settings with a data set.
    """

    def at(values: Mapping[object, float], cell: Cell) -> float:
        for key in (cell, (cell.setting, cell.data), cell.setting):
            if key in values:
                return values[key]
        return 50.0

    return [
        row_of(
            Run(cell, seed),
            **{
                name: at(values, cell) + (seed * (1 + len(cell.setting) % 3) % 5 - 2) / 4
                for name, values in {column: accuracies, **others}.items()
            },
        )
        for cell in set(ALL_CELLS)
        for seed in SEEDS
    ]


GAPS = dict.fromkeys(SETTINGS, 4.0)
ALL = dict.fromkeys(("power", *verdicts.MATCHED), 60.0)


@pytest.mark.parametrize(
    ("accuracies", "gaps", "answer"),
    [
        (ALL, {}, "a gap suffices"),
        (ALL | {"noise": 50.0}, {}, "a gap does not suffice"),
        (ALL | {"noise": 50.0}, {"noise": 1.0}, "a gap suffices"),  # its gap was too small
        (ALL | {"noise": 51.0}, {}, "undecided"),
        (ALL | {("noise", "textures"): 50.0}, {}, "undecided"),  # fails on one variant only
        (ALL, dict.fromkeys(verdicts.MATCHED, 1.0), "undecided"),  # no arm is matched
    ],
)
def test_whether_a_gap_is_sufficient(accuracies, gaps, answer):
    said, judged = verdicts.sufficient(table(accuracies, gap=GAPS | gaps))
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
    said, judged = verdicts.necessary(table(accuracies, erank={"both": 60.0}))
    assert said == {"linear": answer, "erank": "a gap is not necessary"}
    assert len(judged) == 12


FASTER = {f"mse {alpha}": 52.0 for alpha in verdicts.ALPHAS}


@pytest.mark.parametrize(
    ("slope", "rank", "answer"),
    [
        ({}, {}, "no difference beyond the gap was found"),
        (FASTER, {}, "the loss changes the rates"),
        (FASTER | {"mse 1": 48.0}, {}, "no difference beyond the gap was found"),
        (FASTER | {("mse 1", "angles"): 50.0}, {}, "no difference beyond the gap was found"),
        ({}, FASTER | {"mse 1": 48.0}, "rate matters beyond the gap"),
        ({}, {"mse 0.5": 52.0, "mse 1": 48.0}, "no difference beyond the gap was found"),
        (FASTER, FASTER, "the loss changes the rates and rate matters beyond the gap"),
    ],
)
def test_whether_the_loss_changes_rates_and_rank(slope, rank, answer):
    said, judged = verdicts.rate(table(slope, "slope", erank=rank))
    assert said == answer
    assert len(judged) == 18


def test_at_which_batch_sizes_a_running_spectrum_differs():
    assert verdicts.spectrum(table({}))[0] == "no difference was found"
    accuracies = {
        "batch 16, momentum 0.5": 52.0,
        "batch 64, momentum 0.998": 48.0,
        ("batch 256, momentum 0.5", "textures"): 52.0,  # one variant only
    }
    said = verdicts.spectrum(table(accuracies))[0]
    assert said == "batch 16: momentum 0.5 is better; batch 64: momentum 0.998 is worse"


def test_how_fixed_filters_compare_over_complete_schedules():
    fixed = [Cell("SimSiam -0.5", "digits", length) for length in (10, 30, 100)]
    advantages = dict(zip(fixed, (53.0, 51.5, 50.0)))
    others = {
        Cell("BYOL -0.5", "digits", 100): 52.0,
        Cell("BYOL -0.5", "textures"): 48.0,
        Cell("BYOL -0.5", "angles"): 49.5,
    }
    rows = table(advantages | others)
    answers, judged = verdicts.schedule(rows)
    assert [answers[cell] for cell in fixed] == ["superior", "superior", "not inferior"]
    assert answers[Cell("BYOL -0.5", "textures")] == "inferior"
    assert answers[Cell("BYOL -0.5", "angles")] == "not inferior"  # below, but within the margin
    assert answers["SimSiam"] == "its advantage shrinks"
    assert answers["BYOL"] == "its advantage grows"
    assert verdicts.schedule(table(advantages))[0]["BYOL"] == "no change was shown"
    assert len(judged) == 2 * 5 * 2 + 2
    slope = judged["SimSiam"].test.mean
    assert slope == pytest.approx(-3 / math.log(10), abs=0.2)
    # Seeds are paired whatever the order of the rows.
    rows.sort(key=lambda row: int(row["seed"]) * (-1 if row["epochs"] == "10" else 1))
    assert verdicts.schedule(rows)[1]["SimSiam"].test == pytest.approx(judged["SimSiam"].test)


@pytest.mark.parametrize(
    ("accuracies", "best"),
    [
        ({"BYOL -1": 53.0}, (True, ["-1"])),
        ({("BYOL -1", "textures"): 53.0}, (False, ["-1"])),  # equal on the other variant
        ({"BYOL -1": 53.0, "BYOL -0.3": 53.0}, (False, ["-0.3", "-1"])),
        ({("BYOL -1", "textures"): 53.0, ("BYOL -0.3", "angles"): 53.0}, (False, [])),
        ({}, (False, list(verdicts.FILTERS))),
    ],
)
def test_which_filter_is_recommended(accuracies, best):
    answers, judged = verdicts.recommended(table(accuracies))
    assert answers["BYOL"] == best
    assert answers["SimSiam"] == (False, list(verdicts.FILTERS))
    assert len(judged) == 24


def test_a_run_becomes_a_row():
    cell = Cell("SimSiam -0.5", "digits", 10)
    row = measure(*Run(cell, TUNING[0], "0.5"))
    assert set(row) == {*HEAD} - {"slope"}
    assert row["status"] == OK
    assert float(row["linear"]) > float(row["linear untrained"])


def test_a_run_that_chose_a_rate_does_not_count():
    cell = Cell("SimSiam -1", "digits", 10)
    rows = [row_of(Run(cell, seed, "0.5"), linear=90.0) for seed in (TUNING[0], SEEDS[3])]
    assert verdicts.values(rows, cell) == {SEEDS[3]: 90.0}


def test_the_recorded_page_is_that_of_the_recorded_table():
    recorded = read(ROOT / "studies/mechanism/runs.csv")
    assert page.page(recorded) == (ROOT / "docs/mechanism.md").read_text(encoding="utf-8")
    assert page.appendix(recorded) == page.APPENDIX.read_text(encoding="utf-8")


def test_a_question_is_answered_when_all_of_its_runs_are_there():
    accuracies = {"power": 60.0, "BYOL -1": 53.0, "SimSiam -0.5": 53.0}
    accuracies |= {Cell("SimSiam -0.5", "digits", 10): 54.0}
    others = {key: {} for key in plan.MEASURED[1:]} | {"gap": GAPS, "seconds": {}}
    rows = table(accuracies, **others)
    text = page.page(rows)
    assert "**A gap does not suffice.**" in text
    assert "**A gap is necessary by accuracy, a gap is necessary by rank.**" in text
    assert page._Numbers(rows, "linear")["power on textures"] == "60.0"
    assert page._Numbers(rows, "linear")["power vs noise on textures"] == "10.0 (10.0 to 10.0)"
    assert page._Numbers(rows, "linear")["SimSiam -0.5 on digits 10"] == "54.0"
    assert "SimSiam: σ^-0.5 is superior on digits (10, 30, 100), superior" in text
    assert "SimSiam: use σ^-0.5. BYOL: use σ^-1." in text
    assert "Not answered" not in text
    second = plan.stages()["second"]
    later = table(ALL | {"both": 60.0}, **others)
    repeated = [
        row | {"seed": str(int(row["seed"]) + 10)} for row in later if cell_of(row) in second.cells
    ]
    both = page.page([*rows, *repeated])
    assert "**At tuned learning rates: a gap suffices. At the recipe's rate: a gap does" in both
    assert "learning rates: a gap is not necessary by accuracy, " in both
    assert "a gap suffices" not in page.page([*rows, *repeated[1:]])  # a run is missing
    assert page.appendix([*rows, *repeated]).count("at a tuned rate") == 3
    short = [row for row in rows if (row["setting"], row["seed"]) != ("noise", "203")]
    assert page.page(short).count("**Not answered yet:** 3 runs are missing.") == 1
    assert page.page([]).count("**Not answered yet:**") == 6


def test_a_figure_has_the_difference_and_interval_of_each_comparison():
    rows = table({"power": 60.0, "noise": 48.0})
    (accuracy,) = figure(rows, PANELS["sufficient"][:1]).axes
    dots = [line for line in accuracy.lines if line.get_marker() == "o"]
    assert len(dots) == 5 * len(DATA)
    means = sorted({round(float(dot.get_xdata()[0]), 3) for dot in dots})
    assert (means[0], means[-1]) == (-2.0, 10.0)
    names = [label.get_text() for label in accuracy.get_yticklabels()]
    assert names[1:] == ["truncation", "rotated", "rotated anew", "noise"]
