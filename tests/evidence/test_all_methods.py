"""The page that has all methods side by side."""

from __future__ import annotations

import itertools

import pytest
from conftest import ROOT
from matplotlib.text import Text

from rdm_solo.evidence import table
from rdm_solo.evidence.methods import study
from rdm_solo.evidence.methods.figure import PANELS, figure
from rdm_solo.evidence.methods.page import page
from rdm_solo.methods import solo_learn
from rdm_solo.methods.descriptions import METHODS

RECORDED = table.rows(ROOT / "docs" / "methods.csv")


def row(method: str, seed: int, **changed: str) -> dict[str, str]:
    columns = dict.fromkeys(study.MEASURED, "1 2.5")
    about = {"method": method, "seed": str(seed), "diverged": "", "dimensions": "32"}
    rest = {"warnings": "", "seconds": "60", "versions": "torch=2", "processor": "a CPU"}
    return {**about, **columns, **rest, **changed}


def test_the_recorded_page_is_that_of_the_recorded_table():
    assert page(RECORDED) == (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")


def test_every_method_of_either_version_is_recorded_with_every_seed():
    recorded = {(one["method"], int(one["seed"])) for one in RECORDED}
    assert recorded == set(itertools.product(METHODS, study.SEEDS))
    assert len(RECORDED) == len(recorded)


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
