"""The page that has all methods side by side."""

from __future__ import annotations

import itertools
import re
import statistics
import sys

import pytest
from conftest import ROOT
from matplotlib.text import Text
from scipy import stats

from rdm_solo.evidence import table
from rdm_solo.evidence.methods import study
from rdm_solo.evidence.methods.figure import PANELS, draw, figure
from rdm_solo.evidence.methods.page import RANKS, page
from rdm_solo.methods import solo_learn
from rdm_solo.methods.descriptions import METHODS

RECORDED = table.rows(ROOT / "docs" / "methods.csv")


def row(method: str, seed: int, **changed: str) -> dict[str, str]:
    columns = dict.fromkeys(study.MEASURED, "1 2.5")
    about = {"method": method, "seed": str(seed), "diverged": "", "dimensions": "32"}
    rest = {"warnings": "", "seconds": "60", "settings": "", "versions": "torch=2"}
    rest["processor"] = "a CPU"
    return {**about, **columns, **rest, **changed}


def test_the_recorded_page_is_that_of_the_recorded_table():
    assert page(RECORDED) == (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")


def test_every_method_of_either_version_is_recorded_with_every_seed():
    recorded = {(one["method"], int(one["seed"])) for one in RECORDED}
    assert recorded == set(itertools.product(METHODS, study.SEEDS))
    assert len(RECORDED) == len(recorded)


def test_recorded_rows_are_of_the_recipes_of_today():
    today = {name: study.settings(name) for name in METHODS}
    stale = {
        (one["method"], one["seed"]) for one in RECORDED if one["settings"] != today[one["method"]]
    }
    assert not stale


def test_settings_are_those_that_decide_a_runs_numbers(monkeypatch):
    before = study.settings("byol")
    assert before != study.settings("simsiam")
    for option, same in (
        ("pictures.every_n_epochs=3", True),
        ("optimizer.lr=9", False),
        ("method.kwargs.proj_output_dim=8", False),
        ("dataset.views.pipelines.0.jitter=0", False),
        ("knn.k=3", False),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(study, "SHARED", (*study.SHARED, option))
            assert (study.settings("byol") == before) is same, option


def test_a_row_of_another_recipe_is_refused_and_so_is_a_table_of_other_columns(
    tmp_path, monkeypatch, capsys
):
    path = tmp_path / "rows.csv"
    without = [column for column in study.HEAD if column != "settings"]
    old = {column: cell for column, cell in row("byol", 2).items() if column != "settings"}
    table.write(path, without, [old])
    with pytest.raises(ValueError, match="lacks the columns settings: give another --table"):
        study.rows_of(path)
    path.unlink()
    study.add(path, row("byol", 1, settings=study.settings("byol")))
    assert len(study.rows_of(path)) == 1
    study.add(path, row("simsiam", 1, settings="12345678"))
    monkeypatch.setattr(sys, "argv", ["methods", "--most", "0", "--table", str(path)])
    with pytest.raises(SystemExit):
        study.main()
    said = capsys.readouterr().err
    assert "simsiam, seed 1, is not of the method's recipe of today" in said


def test_what_is_missing_is_what_the_installed_version_has():
    here = [n for n, known in METHODS.items() if solo_learn.GENERATION in known.versions]
    assert len(list(study.missing([]))) == len(here) * len(study.SEEDS)
    left = list(study.missing([row("simsiam", study.SEEDS[0])]))
    assert ("simsiam", study.SEEDS[0]) not in left
    assert ("simsiam", study.SEEDS[1]) in left


def test_the_page_says_who_leads_who_was_warned_of_and_who_is_missing():
    rows = [row("byol", seed, **{"erank/gap": f"0 {seed}"}) for seed in (1, 2)]
    rows += [row("mocov2plus", 1, **{"erank/gap": "0 -1", "warnings": "complete collapse in 3"})]
    text = page(rows)
    assert "3 runs; seeds 1, 2; 3 minutes if one run follows the other" in text
    assert (
        "above the online one's in every seed of BYOL, and below it in every seed of MoCo" in text
    )
    assert "Runs with warnings: MoCo v2+ (1 of 1)." in text
    assert "| distilling | BYOL | 32 | 2 | 2.5 ± 0.0 |" in text
    assert "Not in the table yet: SimSiam, SwAV" in text


COMPARED = [n for n, known in METHODS.items() if not known.softmax and known.family != "symmetric"]


def correlation_on_the_page(text: str, measure: str) -> tuple[int, float]:
    """n and Spearman's correlation of that measure."""
    found = re.search(rf"^\| {re.escape(measure)} \| (\d+) \| (\S+) \|$", text, re.MULTILINE)
    assert found, measure
    return int(found[1]), float(found[2])


@pytest.mark.parametrize("sign", [1, -1])
def test_the_page_says_how_ranks_and_accuracies_of_methods_go_together(sign):
    rows = []
    for i, name in enumerate(COMPARED):
        accuracy = {"val/knn_acc1": f"10 {50 + sign * i**2}"}
        rows += [
            row(name, seed, **accuracy, **dict.fromkeys(RANKS.values(), f"1 {2 + i + seed}"))
            for seed in (1, 2)
        ]
    other_way = {"val/knn_acc1": f"10 {50 - sign * 1000}", "erank/centred": "1 1000"}
    rows += [row(name, 1, **other_way) for name in METHODS if name not in COMPARED]
    text = page(rows)
    for measure in RANKS:
        assert correlation_on_the_page(text, measure) == (len(COMPARED), sign)
    assert "no rule about methods" in text


def test_the_recorded_correlations_are_scipys():
    """Of means over seeds, of the methods in which both were measured."""
    text = page(RECORDED)
    for measure, column in RANKS.items():
        pairs = []
        for name in COMPARED:
            of_seeds = [
                [float(one[c].split()[-1]) for c in (column, "val/knn_acc1")]
                for one in RECORDED
                if one["method"] == name and "nan" not in one[column]
            ]
            if of_seeds:
                pairs.append([statistics.fmean(values) for values in zip(*of_seeds)])
        n, correlation = correlation_on_the_page(text, measure)
        assert n == len(pairs) > 2
        assert correlation == pytest.approx(stats.spearmanr(pairs).statistic, abs=0.005)


def test_too_few_methods_have_no_correlation():
    text = page([row(name, 1) for name in COMPARED[:2]])
    assert "| erank around the mean | 2 | – |" in text


def test_a_run_that_diverged_counts_in_no_mean_and_is_named():
    diverged = {"diverged": "training diverged in epoch 3", "warnings": "complete collapse in 2"}
    rows = [row("byol", 1), row("byol", 2, **dict.fromkeys(study.MEASURED, "1 90"), **diverged)]
    rows += [row("simsiam", seed, **diverged) for seed in (1, 2)]
    text = page(rows)
    assert (
        "Runs that diverged, which nothing below counts: SimSiam (2 of 2), BYOL (1 of 2)." in text
    )
    assert "4 runs; seeds 1, 2" in text
    assert "| distilling | BYOL | 32 | 1 | 2.5 |" in text
    assert "| distilling | SimSiam | 32 |" not in text
    assert "Runs with warnings: no method" in text
    assert "Not in the table yet: SwAV, DINO" in text
    assert "diverged" not in page(rows[:1])
    drawn = lines(rows)
    assert len(drawn) == len(PANELS)
    assert all(max(line.get_ydata()) == 2.5 for line in drawn)


def lines(rows):
    return [line for axes in figure(rows).axes for line in axes.lines]


def test_where_all_runs_diverged_there_is_a_page_and_no_figure(tmp_path):
    rows = [
        row("byol", 1, diverged="training diverged in epoch 1", **dict.fromkeys(study.MEASURED, ""))
    ]
    assert "Runs that diverged, which nothing below counts: BYOL (1 of 1)." in page(rows)
    draw(rows, tmp_path / "methods.png")
    assert not list(tmp_path.iterdir())


def test_fewer_values_than_runs_are_said():
    rows = [row("simclr", 1), row("simclr", 2, **{"lidar/target": "1 nan"})]
    *_, ranks = re.findall(r"^\| contrastive \| SimCLR .*$", page(rows), re.MULTILINE)
    assert "| 2 | 2.5 ± 0.0 | 2.5 ± 0.0 |" in ranks
    assert "| 2.5 (n = 1) |" in ranks


def test_a_family_has_a_row_of_panels_and_no_title_leaves_its_panel():
    made = figure([row(name, 1) for name in METHODS])
    made.canvas.draw()
    assert len(made.axes) == 5 * len(PANELS)
    for axes in made.axes:
        assert len(axes.lines) <= 8
    titles = [
        (axes, text)
        for axes in made.axes
        for text in axes.findobj(Text)
        if text.get_text() and text.get_text() == axes.get_title(loc="left")
    ]
    assert len(titles) == 5
    for axes, title in titles:
        assert title.get_window_extent().x1 <= axes.get_window_extent().x1


@pytest.mark.process
def test_a_run_becomes_a_row(monkeypatch, tmp_path):
    shared = (*study.SHARED, "max_epochs=2", "scheduler.warmup_epochs=1", "batch_size=256")
    monkeypatch.setattr(study, "SHARED", shared)
    study.add(tmp_path / "rows.csv", study.measure("simclr", 7))
    (found,) = table.rows(tmp_path / "rows.csv")
    assert (found["method"], found["seed"], found["diverged"]) == ("simclr", "7", "")
    assert len(found["erank/target"].split()) == 2
    assert "torch=" in found["versions"]
    assert found["settings"] == study.settings("simclr")


@pytest.mark.process
def test_a_run_that_diverges_in_its_first_epoch_becomes_a_row(monkeypatch):
    shared = (*study.SHARED, "max_epochs=2", "scheduler.warmup_epochs=0", "optimizer.lr=1e30")
    monkeypatch.setattr(study, "SHARED", shared)
    found = study.measure("vanilla", 7)
    assert found["diverged"].startswith("training diverged in epoch 1")
    assert not any(found[column] for column in study.MEASURED)
