"""The first picture of a page: curves of one setting, or a row of points for each of several."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rdm_solo.messages import UserError
from rdm_solo.plots import style
from rdm_solo.plots.curves import axis_label, looks, note
from rdm_solo.plots.epochs import ERANK, over_epochs
from rdm_solo.plots.exponents import accuracy
from rdm_solo.runs.columns import ACCURACY, COLUMNS
from rdm_solo.runs.folder import Run
from rdm_solo.runs.groups import Group, counted_runs, diverged, groups

ACCURACIES: dict[str, dict[str, Any]] = {
    "val/knn_acc1": {"color": style.BLACK, "linestyle": "-", "marker": "o"},
    "val/acc1": {"color": style.GREEN, "linestyle": (0, (5, 2)), "marker": "^"},
}
# Letters of a setting's name in a line beside its points; longer names take several lines.
LETTERS = 26
LINE = 0.16  # inches


@style.styled
def overview(runs: Sequence[Run]) -> Figure:
    """Effective rank and accuracy of one setting over training."""
    group, *others = groups(runs)
    if others:
        raise UserError("There are several settings; comparison draws them.")
    if not counted_runs(group)[0].epochs:
        raise UserError("No epoch has ended.")
    made, (ranks, right) = style.figure(2, panel=(2.9, 2.3))
    over_epochs(ranks, [(group, *column) for column in ERANK.items()])
    ranks.set_ylim(bottom=0)
    looked = [(name, {**look, "label": COLUMNS[name].words}) for name, look in ACCURACIES.items()]
    if any(group.last(name) for name in ACCURACIES):
        over_epochs(right, [(group, *column) for column in looked])
        right.set_ylabel(ACCURACY)
    else:  # without labels
        over_epochs(right, [(group, "train/loss", {"color": style.BLACK, "marker": "o"})])
    return style.finish(made, note=note([group]))


@style.styled
def comparison(runs: Sequence[Run]) -> Figure:
    """Last accuracy, effective rank and gap of each setting, the most accurate on top.

    A large point is a mean over seeds, small ones are the seeds; a cross is a setting that
    diverged. Runs behind the others of their setting are left out.
    """
    everything = groups(runs)
    measured = accuracy(everything)
    order = sorted(everything, key=lambda group: _mean(group, measured))  # upwards
    look = looks(everything)
    names = [style.wrap(g.label, LETTERS * style.letter(8), 8) for g in order]
    heights = [LINE * (0.8 + name.count("\n") + 1) for name in names]
    middles = np.cumsum(heights) - np.array(heights) / 2
    columns = (measured, "erank/centred", "erank/gap")
    made, panels = style.figure(3, columns=3, panel=(3.5, 0.5 + sum(heights)))
    for axes, column in zip(panels, columns):
        for group, y in zip(order, middles):
            _points(axes, group, column, float(y), look[group.label]["color"])
        if not axes.lines:
            style.empty_panel(axes, f"{column}\nwas not measured")
            continue
        axes.set_yticks(middles, names)
        axes.set_ylim(0, sum(heights))
        axes.set_xlabel(axis_label(column))
        if column == "erank/gap":
            axes.axvline(0, color="0.5", linewidth=0.8, zorder=0)
    return style.finish(made, note=note(everything))


def _mean(group: Group, column: str) -> float:
    values = group.last(column)
    return float(np.mean(values)) if values else -np.inf


def _points(axes: Axes, group: Group, column: str, y: float, color: str) -> None:
    if values := group.last(column):
        marker = "X" if diverged(group) else "o"
        seeds: dict[str, Any] = {"linestyle": "none", "marker": marker, "color": color}
        axes.plot(values, [y] * len(values), markersize=2.6, alpha=0.55, **seeds)
        axes.plot([np.mean(values)], [y], markersize=6, **seeds)
