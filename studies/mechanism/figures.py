"""A figure for each question: differences between settings with their 95 % intervals."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rdm_solo.plots import style
from studies.mechanism.plan import DATA, EPOCHS
from studies.mechanism.verdicts import compare

COLOURS = {"digits": style.GREY, "textures": style.ORANGE, "angles": style.GREEN}
OFFSETS = {"digits": -0.22, "textures": 0.0, "angles": 0.22}  # of a row's points
LABELS = {
    "linear": "difference in linear accuracy (points)",
    "erank": "difference in effective rank",
    "slope": "difference in slope",
}


def tests_of(runs: pd.DataFrame, panel: Mapping[str, Any]) -> pd.DataFrame:
    """Return the tests of a panel, with the name of their row."""
    tests = []
    sets = panel.get("data", DATA)
    for name, (first, other, *epochs) in panel["rows"].items():
        if first not in runs.index:  # the second stage has the settings that its verdicts need
            continue
        for test in compare(runs, [(first, other)], panel["column"]):
            if test["data"] in sets and test["epochs"] in (epochs or [EPOCHS]):
                tests.append({"row": name, **test})
    return pd.DataFrame(tests)


@style.styled
def figure(runs: pd.DataFrame, panels: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw the mean difference of each comparison and its interval."""
    by_panel = [tests_of(runs, panel) for panel in panels]
    names = list(by_panel[0]["row"].unique())
    height = 0.38 + 0.23 * len(names)
    drawing = Figure(figsize=(8.2, height), layout="constrained")
    grid = drawing.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for ax, panel, tests in zip(grid, panels, by_panel):
        for test in tests.itertuples():
            y = names.index(test.row) + OFFSETS[test.data]
            colour = COLOURS[test.data]
            ax.plot([test.low, test.high], [y, y], linewidth=1.3, color=colour)
            ax.plot([test.mean], [y], "o", markersize=3.6, color=colour)
        ax.axvline(0, color="black", linewidth=0.8)
        ax.set(title=panel.get("title", ""), xlabel=LABELS[panel["column"]])
        ax.grid(axis="x", color="0.88", linewidth=0.6)
        ax.grid(visible=False, axis="y")
    grid[0].set_yticks(range(len(names)), map(style.typeset, names))
    grid[0].set_ylim(len(names) - 0.5, -0.5)
    handles = []
    drawn = set(by_panel[0]["data"])
    for data, colour in COLOURS.items():
        if data in drawn:
            handles.append(Line2D([], [], color=colour, marker="o", label=data))
    drawing.legend(handles=handles, loc="outside right upper")
    drawing.draw_without_rendering()  # `plots.save` expects a final layout
    return drawing
