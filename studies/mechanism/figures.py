"""A figure for each question: differences between settings with their 95 % intervals."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rdm_solo.plots import style
from studies.intervals import difference
from studies.mechanism.plan import EPOCHS
from studies.mechanism.verdicts import pairs

LOOKS = {  # colour of a data set, and the offset of its points from their row
    "digits": (style.GREY, -0.22),
    "textures": (style.ORANGE, 0.0),
    "angles": (style.GREEN, 0.22),
}
LABELS = {
    "linear": "difference in linear accuracy (points)",
    "erank": "difference in effective rank",
    "slope": "difference in slope",
}


@style.styled
def figure(runs: pd.DataFrame, panels: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw the mean difference of each comparison and its interval."""
    names = []
    for name, (first, *_) in panels[0]["rows"].items():
        if first in runs.index:  # the second stage has the settings that its verdicts need
            names.append(name)
    sets = panels[0].get("data", runs.index.unique("data"))
    height = 0.38 + 0.23 * len(names)
    drawing = Figure(figsize=(8.2, height), layout="constrained")
    grid = drawing.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for ax, panel in zip(grid, panels):
        for row, name in enumerate(names):
            first, other, *epochs = panel["rows"][name]
            samples = pairs(runs, panel["column"], first, other)
            for data in sets:
                test = difference(samples[(data, *(epochs or [EPOCHS]))])
                colour, offset = LOOKS[data]
                y = row + offset
                ax.plot([test["low"], test["high"]], [y, y], linewidth=1.3, color=colour)
                ax.plot(test["mean"], y, "o", markersize=3.6, color=colour)
        ax.axvline(0, color="black", linewidth=0.8)
        ax.set(title=panel.get("title", ""), xlabel=LABELS[panel["column"]])
        ax.grid(axis="x", color="0.88", linewidth=0.6)
        ax.grid(visible=False, axis="y")
    grid[0].set_yticks(range(len(names)), map(style.typeset, names))
    grid[0].set_ylim(len(names) - 0.5, -0.5)
    handles = []
    for data in sets:
        colour, _ = LOOKS[data]
        handles.append(Line2D([], [], color=colour, marker="o", label=data))
    drawing.legend(handles=handles, loc="outside right upper")
    drawing.draw_without_rendering()  # `plots.save` expects a final layout
    return drawing
