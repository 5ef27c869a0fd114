"""The page that compares all methods."""

import itertools
import math
import re
import statistics

import pytest
from conftest import ROOT
from scipy import stats
from support.small_runs import train_study

from rdm_solo.methods.descriptions import METHODS
from studies import table, training
from studies.methods import runs
from studies.methods.figure import PANELS, figure
from studies.methods.page import BESIDE, RANKS, appendix, page
from studies.table import series

RECORDED = table.read(ROOT / "studies" / "methods" / "runs.csv")
COMPARED = [n for n, m in METHODS.items() if not (m.softmax or m.labels or m.symmetric)]


def row(method: str, seed: int, **changed: str) -> dict[str, str]:
    about = {"method": method, "seed": str(seed), "diverged": "", "dimensions": "32"}
    rest = {"warnings": "", "seconds": "60", "versions": "torch=2", "processor": "a CPU"}
    return {**about, **dict.fromkeys(runs.MEASURED, "1 2.5"), **rest, **changed}


def correlation_on_the_page(text: str, measure: str) -> tuple[int, float]:
    """Return n and Spearman's correlation of that measure."""
    line = re.search(rf"^\| {re.escape(measure)} \| (\d+) \| (\S+) \[.*\] \|$", text, re.MULTILINE)
    assert line, measure
    return int(line[1]), float(line[2])


def test_the_recorded_page_is_that_of_the_recorded_table():
    assert page(RECORDED) == (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    assert appendix(RECORDED) == BESIDE.read_text(encoding="utf-8")


def test_every_method_of_either_version_is_recorded_with_every_seed():
    recorded = {(one["method"], int(one["seed"])) for one in RECORDED}
    assert recorded == set(itertools.product(METHODS, runs.SEEDS))
    assert runs.missing(RECORDED) == []
    assert ("simsiam", runs.SEEDS[0]) in runs.missing([])


def test_the_page_names_leads_warnings_and_missing_methods():
    rows = [row("byol", seed, **{"erank/gap": f"0 {seed}"}) for seed in (1, 2)]
    rows += [row("mocov2plus", 1, **{"erank/gap": "0 -1", "warnings": "complete collapse in 3"})]
    text = page(rows)
    assert "in every seed of BYOL, and below it in every seed of MoCo" in text
    assert "Runs with a warning or a note: MoCo v2+ (1 of 1)." in text
    assert "| distilling | BYOL | 32 | 2 | 2.5 ± 0.0 |" in text
    assert "Not in the table yet: SimSiam, SwAV" in text


def test_the_recorded_correlations_are_scipys():
    """Of means over seeds, of the methods in which both were measured."""
    text = appendix(RECORDED)
    for measure, column in RANKS.items():
        pairs = []
        for name in COMPARED:
            last = [
                [series(one[c])[-1] for c in (column, "val/knn_acc1")]
                for one in RECORDED
                if one["method"] == name and one[column]
            ]
            of_seeds = [values for values in last if not any(map(math.isnan, values))]
            if of_seeds:
                pairs.append([statistics.fmean(values) for values in zip(*of_seeds)])
        n, correlation = correlation_on_the_page(text, measure)
        assert n == len(pairs) > 2
        assert correlation == pytest.approx(stats.spearmanr(pairs).statistic, abs=0.005)


def test_a_diverged_run_counts_in_no_mean_and_is_named():
    diverged = {"diverged": "training diverged in epoch 3", "warnings": "complete collapse in 2"}
    rows = [row("byol", 1), row("byol", 2, **dict.fromkeys(runs.MEASURED, "1 90"), **diverged)]
    rows += [row("simsiam", seed, **diverged) for seed in (1, 2)]
    text = page(rows)
    assert "Diverged runs, which are not counted below: SimSiam (2 of 2), BYOL (1 of 2)." in text
    assert "| distilling | BYOL | 32 | 1 | 2.5 |" in text
    assert "| distilling | SimSiam | 32 |" not in text
    assert "Runs with a warning or a note: no method" in text
    lines = [line for axes in figure(rows).axes for line in axes.lines]
    assert len(lines) == len(PANELS)
    assert all(max(line.get_ydata()) == 2.5 for line in lines)


@pytest.mark.long
def test_a_run_that_diverges_in_its_first_epoch_becomes_a_row(monkeypatch):
    short = ("max_epochs=2", "scheduler.warmup_epochs=0", "optimizer.lr=1e30", "batch_size=256")
    monkeypatch.setattr(runs, "SHARED", (*runs.SHARED, *short))
    run = runs.measure("vanilla", 7)
    assert (run["method"], run["seed"]) == ("vanilla", "7")
    assert run["diverged"] == "training diverged in epoch 1"
    assert "erank/target" not in run
    assert "torch=" in run["versions"]


def test_a_run_becomes_a_row(monkeypatch):
    monkeypatch.setattr(training, "train", train_study)
    run = runs.measure("simclr", 7)
    assert (run["diverged"], len(run["erank/target"].split())) == ("", 2)
