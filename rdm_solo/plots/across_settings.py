"""Figures that compare the last values of settings: against p, and as a list."""

from collections import defaultdict
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rdm_solo.plots import style
from rdm_solo.plots.epochs import ACCURACIES, BRANCHES, axis_label
from rdm_solo.plots.plot import Groups, Plot
from rdm_solo.runs.groups import Group

ACROSS: dict[str, Any] = {"linewidth": 1.0, "markevery": [1], "clip_on": False, "zorder": 1.5}
DIVERGED: dict[str, Any] = {"marker": "X", "markersize": 6, "label": "_diverged"}
# Maximum characters per line of a setting's name, and the line height in inches.
LETTERS, LINE = 26, 0.16


def accuracy(groups: Groups) -> str:
    """Return the column of the kNN accuracy, or of the online accuracy if kNN was not measured."""
    for name in ACCURACIES:
        if any(group.last(name) for group in groups):
            return name
    return ACCURACIES[0]


def panel_row(group: Group) -> tuple[str, str]:
    """Return method and data set; settings with equal ones share a row of panels."""
    return group.method, group.first.dataset


def _with_exponents(all_groups: Groups) -> list[Group]:
    """Return all settings of the methods of which a filter was run with several exponents."""
    first: dict[Any, float] = {}  # each family's first exponent
    rows = set()
    for group in all_groups:
        p = group.first.p
        if p is not None:
            row = panel_row(group)
            if p != first.setdefault((row, group.family), p):
                rows.add(row)
    return [group for group in all_groups if panel_row(group) in rows]


@partial(
    Plot,
    title="Accuracy, effective rank and gap against p",
    caption="Last values; p = 0 means no filter. A wider gap is not always better: look at where "
    "the accuracy peaks. Horizontal lines are settings without a constant exponent, crosses are "
    "settings whose runs all diverged.",
    needs="a filter with several exponents p (filter=..._pow)",
    seeds="Points: mean of {n} seeds. Bars: minimum to maximum.",
    choose=_with_exponents,
)
def sweep(groups: Groups, looks: style.Looks) -> Figure:
    by_row = defaultdict(list)
    for group in groups:
        by_row[panel_row(group)].append(group)
    families = style.looks(group.family for group in groups)
    several = len(families) > 1
    figure, panels = style.figure(3 * len(by_row), columns=3)
    columns = accuracy(groups), "erank/target", "erank/gap"
    rows = zip(by_row.items(), panels[::3], panels[1::3], panels[2::3])
    for (row, members), accuracies, ranks, gaps in rows:
        for family, look in families.items():
            same = [group for group in members if group.family == family]
            solid = {**look, "linestyle": "-"}
            _draw_against_p(accuracies, same, accuracy(groups), solid)
            _draw_against_p(gaps, same, "erank/gap", solid)
            for column, branch in BRANCHES.items():
                both = {**branch, "label": family}
                if several:  # a single filter leaves the colour to the branch
                    both["color"] = look["color"]
                _draw_against_p(ranks, same, column, both)
        for axes, column in zip((accuracies, ranks, gaps), columns):
            axes.set(xlabel="exponent p", ylabel=axis_label(column))
            axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
            style.mark_empty(axes, f"{column}\nwas not measured")
        style.panel_title(accuracies, ", ".join(row))
    # Entries of the legend for the branches.
    for branch in BRANCHES.values():
        entry = dict(branch)
        if several:
            entry["color"] = style.GREY
        gaps.plot([], [], **entry)
    return figure


def _draw_against_p(axes: Axes, groups: Groups, column: str, look: style.Look) -> None:
    """Draw a filter's last values against p, or as horizontal lines if it has no p."""
    points = []
    for group in groups:
        p = group.first.p
        values = group.last(column)
        if not values:
            continue
        mean = float(np.mean(values))
        if p is None:
            axes.axhline(mean, **{**look, **ACROSS})
        elif group.diverged:
            axes.plot(p, mean, **{**look, **DIVERGED})
        else:
            axes.vlines(p, min(values), max(values), look["color"], lw=1)
            points.append((p, mean))
    if points:
        exponents, means = zip(*sorted(points))
        axes.plot(exponents, means, **look)


def _several(all_groups: Groups) -> Groups:
    """Return all settings if there are several that do not only differ in p."""
    if len(all_groups) == 1 or len(all_groups) == len(_with_exponents(all_groups)):
        return []
    return all_groups


@partial(
    Plot,
    title="Last values of every setting",
    caption="Where an accuracy was measured, the most accurate setting is on top. Crosses are "
    "settings whose runs all diverged.",
    needs="several settings that do not only differ in p",
    seeds="Large points: mean of {n} seeds. Small points: single seeds.",
    choose=_several,
)
def comparison(groups: Groups, looks: style.Looks) -> Figure:
    measured = accuracy(groups)
    upwards = sorted(groups, key=lambda group: np.mean(group.last(measured) or [-np.inf]))
    width = LETTERS * style.char_width(8)
    names = [style.wrap(group.label, width, 8) for group in upwards]
    lines = 1 + max(name.count("\n") for name in names)
    count = len(names)
    height = 0.5 + LINE * (lines + 1) * count
    columns = []
    for column in (measured, "erank/centred", "erank/gap"):
        if any(group.last(column) for group in groups):
            columns.append(column)
    columns = columns or [measured]  # a panel that says so
    figure, panels = style.figure(len(columns), panel=(3.5, height))
    for axes, column in zip(panels, columns):
        for y, group in enumerate(upwards):
            values = group.last(column)
            if not values:
                continue
            color = looks[group.label]["color"]
            marker = "X" if group.diverged else "o"
            look = style.look("", color, "none", marker)
            axes.plot(values, [y] * len(values), **look, markersize=2.6, alpha=0.55)
            axes.plot(np.mean(values), y, **look, markersize=6)
        axes.set(ylim=(-0.5, count - 0.5), xlabel=axis_label(column))
        axes.set_yticks(range(count), names)
        axes.tick_params(labelleft=axes is panels[0])
        style.mark_empty(axes, f"{column}\nwas not measured")
    return figure
