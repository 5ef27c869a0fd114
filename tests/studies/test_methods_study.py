"""The page that compares all methods."""

import itertools

import pandas as pd

from rdm_solo.methods.descriptions import METHODS
from studies.methods.figure import PANELS, figure
from studies.methods.page import STUDY, analyse
from studies.methods.runs import PLAN


def row(method, seed, last, diverged=""):
    """Return a run with the same last value in all columns."""
    row = dict.fromkeys(PLAN["measured"], f"1 {last}")
    row |= {"method": method, "seed": str(seed), "diverged": diverged}
    row |= {"dimensions": "32", "warnings": diverged, "seconds": "60"}
    return row


def test_every_method_of_either_version_is_recorded_with_every_seed():
    table = STUDY.read()
    recorded = zip(table["method"], table["seed"].astype(int))
    expected = itertools.product(METHODS, PLAN["seeds"])
    assert set(recorded) == set(expected)


def test_a_diverged_run_counts_in_no_mean_and_is_named():
    diverged = "training diverged in epoch 3"
    rows = [
        row("byol", 1, "2.5"),
        row("simclr", 1, "2.5"),
        row("byol", 2, "90", diverged),
        row("simsiam", 1, "90", diverged),
    ]
    table = pd.DataFrame(rows)
    values = analyse(table)
    assert values["diverged"] == ["SimSiam (1 of 1)", "BYOL (1 of 2)"]
    assert values["cell"]("byol", "erank/gap", 1) == "2.5"
    assert values["warnings"] == []
    drawing = figure(table[table["diverged"] == ""])
    lines = [line for axes in drawing.axes for line in axes.lines]
    assert len(lines) == 2 * len(PANELS)
    for line in lines:
        assert max(line.get_ydata()) == 2.5
