"""Rank and accuracy of every method over the epochs, a column of panels for each family."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from rdm_solo import plots
from rdm_solo.methods.descriptions import FAMILIES, METHODS
from rdm_solo.plots import style
from rdm_solo.runs.groups import over_seeds
from studies.table import Row, series

# Column of the table, label of its axis.
PANELS = {
    "erank/centred": "effective rank around the mean",
    "val/knn_acc1": "kNN accuracy (%)",
}


@style.styled
def figure(rows: Sequence[Row]) -> Figure:
    """Draw means over seeds, with a band from minimum to maximum, without diverged runs."""
    rows = [row for row in rows if not row["diverged"]]
    methods = {row["method"] for row in rows}
    families = [f for f in FAMILIES if any(METHODS[name].family == f for name in methods)]
    drawing = Figure(figsize=(0.6 + 2 * len(families), 5.2), layout="constrained")
    grid = drawing.subplots(len(PANELS), len(families), sharex=True, sharey="row", squeeze=False)
    for title, ax in zip(PANELS.values(), grid[:, 0]):
        ax.set_ylabel(title)
    for family, axes in zip(families, grid.T):
        names = [name for name in METHODS if name in methods and METHODS[name].family == family]
        looks = style.looks(METHODS[name].label for name in names)
        for column, ax in zip(PANELS, axes):
            for name in names:
                runs = [series(row[column]) for row in rows if row["method"] == name]
                longest = max(map(len, runs))
                stack = np.array([[*run, *[np.nan] * (longest - len(run))] for run in runs])
                curve = over_seeds(np.arange(1, longest + 1), stack)
                look = looks[METHODS[name].label]
                ax.plot(curve.x, curve.mean, **{**look, "marker": ""})
                ax.fill_between(curve.x, curve.low, curve.high, color=look["color"], alpha=0.15)
            ax.grid(color="0.88", linewidth=0.6)
        axes[0].set_title(family)
        axes[-1].legend(loc="lower right", fontsize=7.5)
    for ax in grid[-1]:
        ax.set_xlabel("epoch")
    drawing.draw_without_rendering()  # `plots.save` expects a final layout
    return drawing


def draw(rows: Sequence[Row], path: Path) -> None:
    """Save the figure as a PNG."""
    if not all(row["diverged"] for row in rows):
        plots.save(figure(rows), path.parent, path.stem, ("png",))
