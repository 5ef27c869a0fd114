"""Figures that compare the last values of settings: against p, and as a list."""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rdm_solo.plots import style
from rdm_solo.plots.entry import Groups, Plot
from rdm_solo.plots.epochs import axis_label
from rdm_solo.runs.columns import ACCURACY, charts
from rdm_solo.runs.groups import Group, diverged

# The target has hollow markers, as in every figure, because a single exponent draws no line.
BRANCHES: dict[str, dict[str, Any]] = {
    "erank/target": {"markerfacecolor": "white", "markersize": 5, "markeredgewidth": 1.2},
    "erank/online": {"linestyle": style.ONLINE["linestyle"]},
}
ACROSS: dict[str, Any] = {"linewidth": 1.0, "markevery": [1], "clip_on": False, "zorder": 1.5}
DIVERGED: dict[str, Any] = {"marker": "X", "markersize": 6, "label": "_diverged"}
# Maximum characters per line of a setting's name, and the line height in inches.
LETTERS, LINE = 26, 0.16


def accuracy(members: Groups) -> str:
    """Return the column of the kNN accuracy, or of the online accuracy if kNN was not measured."""
    names = [column.name for column in charts()[ACCURACY]]
    measured = [name for name in names if any(group.last(name) for group in members)]
    return (measured or names)[-1]


def panel_row(group: Group) -> tuple[str, str]:
    """Return method and data set; settings with equal ones share a row of panels."""
    return group.method, group.first.dataset


def _with_exponents(all_groups: Groups) -> list[Group]:
    """Return all settings of the methods that were run with several exponents."""
    rows = {panel_row(group) for group in all_groups if group.first.p is not None}
    exponents = {group.first.p for group in all_groups} - {None}
    return [g for g in all_groups if panel_row(g) in rows] if len(exponents) > 1 else []


@partial(
    Plot,
    section="best",
    title="Accuracy, effective rank and gap against p",
    caption="Last values of each run. Points: means over seeds. Bars: minimum to maximum. Crosses: "
    "settings whose runs all diverged. Horizontal lines: settings without an exponent. p = 0 means "
    "no filter. A wider gap is not always better: look at where the accuracy peaks.",
    needs="runs with several exponents p (filter=..._pow)",
    choose=_with_exponents,
)
def sweep(groups: Groups, looks: style.Looks) -> Figure:
    rows = list(dict.fromkeys(map(panel_row, groups)))
    series = style.looks(map(_series, groups))
    figure, panels = style.figure(3 * len(rows))
    columns = [[accuracy(groups)], [*BRANCHES], ["erank/gap"]]
    for i, row in enumerate(rows):
        members = [group for group in groups if panel_row(group) == row]
        for axes, panel_columns in zip(panels[3 * i :], columns):
            _last_values(axes, members, panel_columns, series)
        style.panel_title(panels[3 * i], ", ".join(row))
    for name, branch_look in BRANCHES.items():
        label = f"branch: {name.partition('/')[2]}"
        panels[-1].plot([], [], color="0.4", marker="o", label=label, **branch_look)
    return figure


def _series(group: Group) -> str:
    """Return the name of the curve that a setting belongs to."""
    if group.first.p is None:
        return group.variant
    chosen = group.first.chosen_filter
    if chosen.power and chosen.formula:
        return f"{chosen.branch} filter {chosen.formula.format(p='p')}{group.suffix}"
    return chosen.label + group.suffix


def _last_values(axes: Axes, members: Groups, columns: Sequence[str], series: style.Looks) -> None:
    """Draw last values against p, or as a horizontal line if a setting has no p."""
    for column in columns:
        points: dict[str, list[tuple[float, list[float]]]] = defaultdict(list)
        for group in members:
            name, values, p = _series(group), group.last(column), group.first.p
            look = {**series[name], "linestyle": "-", **BRANCHES.get(column, {})}
            if not values:
                continue
            if p is None:
                axes.axhline(float(np.mean(values)), **{**look, **ACROSS})
            elif diverged(group):
                axes.plot([p], [np.mean(values)], **{**look, **DIVERGED})
            else:
                points[name].append((p, values))
        for name, pairs in points.items():
            look = {**series[name], "linestyle": "-", **BRANCHES.get(column, {})}
            x, seeds = zip(*sorted(pairs))
            axes.plot(x, [np.mean(values) for values in seeds], **look)
            axes.vlines(x, [min(v) for v in seeds], [max(v) for v in seeds], look["color"], lw=1)
    axes.set(xlabel="exponent $p$", ylabel=axis_label(columns[0]))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    style.mark_empty(axes, f"{columns[0]}\nwas not measured")


@partial(
    Plot,
    section="best",
    title="Accuracy, effective rank and gap of every setting",
    caption="Last values, with the most accurate setting on top. Large points: means over seeds. "
    "Small points: single seeds. Crosses: settings whose runs all diverged. If two settings' "
    "points overlap, the seeds do not separate them.",
    needs="several settings",
    choose=lambda all_groups: all_groups if len(all_groups) > 1 else [],
)
def comparison(groups: Groups, looks: style.Looks) -> Figure:
    measured = accuracy(groups)
    upwards = sorted(groups, key=lambda group: np.mean(group.last(measured) or [-np.inf]))
    names = [style.wrap(g.label, LETTERS * style.char_width(8), 8) for g in upwards]
    height = LINE * (2 + max(name.count("\n") for name in names))
    figure, panels = style.figure(3, panel=(3.5, 0.5 + height * len(names)))
    for axes, column in zip(panels, (measured, "erank/centred", "erank/gap")):
        for y, group in enumerate(upwards):
            points: Any = {"linestyle": "none", "color": looks[group.label]["color"]}
            points["marker"] = "X" if diverged(group) else "o"
            if values := group.last(column):
                axes.plot(values, [y] * len(values), markersize=2.6, alpha=0.55, **points)
                axes.plot([np.mean(values)], [y], markersize=6, **points)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(-0.5, len(names) - 0.5)
        axes.set_xlabel(axis_label(column))
        style.mark_empty(axes, f"{column}\nwas not measured")
    return figure
