"""Rank and accuracy of every method over the epochs, a column of panels for each family."""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rdm_solo import plots
from rdm_solo.methods.descriptions import FAMILIES, METHODS
from rdm_solo.plots import style
from rdm_solo.runs.groups import over_seeds
from studies.study import series

# Column of the table, label of its axis.
PANELS = {
    "erank/centred": "effective rank around the mean",
    "val/knn_acc1": "kNN accuracy (%)",
}


@style.styled
def figure(runs: pd.DataFrame) -> Figure:
    """Draw means over seeds, with a band from minimum to maximum."""
    by_family = {family: [] for family in FAMILIES}
    for method in METHODS.values():
        if method.name in set(runs["method"]):
            by_family[method.family].append(method)
    families = [family for family in FAMILIES if by_family[family]]
    drawing = Figure(figsize=(0.6 + 2 * len(families), 5.2), layout="constrained")
    grid = drawing.subplots(len(PANELS), len(families), sharex=True, sharey="row", squeeze=False)
    for family, axes in zip(families, grid.T):
        looks = style.looks(method.label for method in by_family[family])
        for column, ax in zip(PANELS, axes):
            for method in by_family[family]:
                cells = runs.loc[runs["method"] == method.name, column]
                draw_method(ax, cells, looks[method.label])
            ax.grid(color="0.88", linewidth=0.6)
        axes[0].set_title(family)
        axes[-1].legend(loc="lower right", fontsize=7.5)
        axes[-1].set_xlabel("epoch")
    for ax, label in zip(grid[:, 0], PANELS.values()):
        ax.set_ylabel(label)
    drawing.draw_without_rendering()  # `plots.save` expects a final layout
    return drawing


def draw_method(ax: Axes, cells: pd.Series, look: dict[str, str]) -> None:
    runs = pd.DataFrame(cells.map(series).tolist()).to_numpy()  # shorter runs end with NaN
    curve = over_seeds(np.arange(1, runs.shape[1] + 1), runs)
    ax.plot(curve.x, curve.mean, **{**look, "marker": ""})
    ax.fill_between(curve.x, curve.low, curve.high, color=look["color"], alpha=0.15)


def draw(table: pd.DataFrame, folder: Path) -> None:
    """Save the figure as a PNG, without diverged runs."""
    plots.save(figure(table[table["diverged"] == ""]), folder, "methods", ("png",))
