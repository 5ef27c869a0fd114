"""The page that compares all methods."""

import itertools

import pandas as pd
import pytest
from support.small_runs import train_study

from rdm_solo.methods.descriptions import METHODS
from studies import training
from studies.methods import runs
from studies.methods.figure import PANELS, figure
from studies.methods.page import STUDY, analyse
from studies.methods.runs import PLAN

RECORDED = STUDY.read()


def row(method: str, seed: int, **changes: str) -> dict[str, str]:
    about = {"method": method, "seed": str(seed), "diverged": "", "dimensions": "32"}
    about |= {"warnings": "", "seconds": "60"}
    return {**about, **dict.fromkeys(PLAN["measured"], "1 2.5"), **changes}


def test_every_method_of_either_version_is_recorded_with_every_seed():
    recorded = set(zip(RECORDED["method"], RECORDED["seed"].astype(int)))
    assert recorded == set(itertools.product(METHODS, PLAN["seeds"]))


def test_the_page_names_leads_warnings_and_missing_methods():
    rows = [row("byol", seed, **{"erank/gap": f"0 {seed}"}) for seed in (1, 2)]
    rows += [row("mocov2plus", 1, **{"erank/gap": "0 -1", "warnings": "complete collapse in 3"})]
    values = analyse(pd.DataFrame(rows))
    assert values["leads"] == ["BYOL"]
    assert values["lags"] == ["MoCo v2+"]
    assert values["warnings"] == ["MoCo v2+ (1 of 1)"]
    assert values["cell"]("byol", "erank/gap", 1) == "1.5 ± 0.7"
    assert values["absent"][:2] == ["SimSiam", "SwAV"]


def test_a_diverged_run_counts_in_no_mean_and_is_named():
    diverged = {"diverged": "training diverged in epoch 3", "warnings": "complete collapse in 2"}
    diverged |= dict.fromkeys(PLAN["measured"], "1 90")
    rows = [row("byol", 1), row("byol", 2, **diverged), row("simsiam", 1, **diverged)]
    table = pd.DataFrame(rows)
    values = analyse(table)
    assert values["diverged"] == ["SimSiam (1 of 1)", "BYOL (1 of 2)"]
    assert values["cell"]("byol", "erank/gap", 1) == "2.5"
    assert list(values["dimensions"].index) == ["byol"]
    assert values["warnings"] == []
    assert values["correlation"]("erank/centred") == {"n": 1, "text": "–"}
    drawing = figure(table[table["diverged"] == ""])
    lines = [line for axes in drawing.axes for line in axes.lines]
    assert len(lines) == len(PANELS)
    assert all(max(line.get_ydata()) == 2.5 for line in lines)


@pytest.mark.long
def test_a_run_that_diverges_in_its_first_epoch_becomes_a_row(monkeypatch):
    short = ["max_epochs=2", "scheduler.warmup_epochs=0", "optimizer.lr=1e30", "batch_size=256"]
    monkeypatch.setitem(PLAN, "shared", [*PLAN["shared"], *short])
    run = runs.measure("vanilla", 7)
    assert run["diverged"] == "training diverged in epoch 1"
    assert run["erank/target"] == ""
    assert "torch=" in run["versions"]


def test_a_run_becomes_a_row(monkeypatch):
    monkeypatch.setattr(training, "train", train_study)
    run = runs.measure("simclr", 7)
    assert set(run) == set(RECORDED.columns) - {"settings"} | {"code"}
    assert (run["diverged"], len(run["erank/target"].split())) == ("", 2)
