"""Rank and accuracy of every method over the epochs, a column of panels for each family."""

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rdm_solo import plots
from rdm_solo.methods.descriptions import FAMILIES, METHODS
from rdm_solo.plots import style
from studies.study import series

# Column of the table, label of its axis.
PANELS = {
    "erank/centred": "effective rank around the mean",
    "val/knn_acc1": "kNN accuracy (%)",
}


@style.styled
def figure(runs: pd.DataFrame) -> Figure:
    """Draw means over seeds, with a band from minimum to maximum."""
    recorded = set(runs["method"])
    families = {}
    for family in FAMILIES:
        members = [m for m in METHODS.values() if m.family == family and m.name in recorded]
        if members:
            families[family] = members
    width = 0.6 + 2 * len(families)
    drawing = Figure(figsize=(width, 5.2), layout="constrained")
    grid = drawing.subplots(len(PANELS), len(families), sharex=True, sharey="row", squeeze=False)
    for (family, members), axes in zip(families.items(), grid.T):
        looks = style.looks(method.label for method in members)
        for column, ax in zip(PANELS, axes):
            for method in members:
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
    by_epoch = pd.DataFrame(cells.map(series).tolist())  # shorter runs end with NaN
    epochs = by_epoch.columns + 1
    ax.plot(epochs, by_epoch.mean(), **{**look, "marker": ""})
    ax.fill_between(epochs, by_epoch.min(), by_epoch.max(), color=look["color"], alpha=0.15)


def draw(table: pd.DataFrame, folder: Path) -> None:
    """Save the figure as a PNG, without diverged runs."""
    plots.save(figure(table[table["diverged"] == ""]), folder, "methods", ("png",))
