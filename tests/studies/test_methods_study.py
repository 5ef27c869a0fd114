"""The page that compares all methods."""

import pandas as pd

from studies.methods.figure import PANELS, figure
from studies.methods.page import analyse
from studies.methods.runs import PLAN


def row(method, seed, last, diverged=""):
    """Return a run with the same last value in all columns."""
    measured = dict.fromkeys(PLAN["measured"], f"1 {last}")
    about = {"method": method, "seed": str(seed), "diverged": diverged}
    return {**about, **measured, "dimensions": "32", "warnings": diverged, "seconds": "60"}


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
    highest = [max(line.get_ydata()) for axes in drawing.axes for line in axes.lines]
    assert highest == [2.5] * 2 * len(PANELS)
