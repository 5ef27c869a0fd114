"""Figures that compare the last values of settings: against p, and as a list."""

from collections import Counter, defaultdict
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

# As in every figure, but if a panel has several settings, the colour marks the setting.
BRANCHES = {"erank/target": style.TARGET, "erank/online": style.ONLINE}
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
    """Return all settings of the methods of which a filter was run with several exponents."""
    exponents = {(panel_row(g), g.family, g.first.p) for g in all_groups if g.first.p is not None}
    counts = Counter((row, family) for row, family, _ in exponents)
    rows = {row for (row, _), count in counts.items() if count > 1}
    return [group for group in all_groups if panel_row(group) in rows]


@partial(
    Plot,
    title="Accuracy, effective rank and gap against p",
    caption="Last values; p = 0 means no filter. A wider gap is not always better: look at where "
    "the accuracy peaks. Horizontal lines are settings without an exponent, crosses are settings "
    "whose runs all diverged.",
    needs="a filter with several exponents p (filter=..._pow)",
    seeds="Points: mean of {n} seeds. Bars: minimum to maximum.",
    choose=_with_exponents,
)
def sweep(groups: Groups, looks: style.Looks) -> Figure:
    rows = list(dict.fromkeys(map(panel_row, groups)))
    series = style.looks(group.family for group in groups)
    figure, panels = style.figure(3 * len(rows), columns=3)
    columns = [[accuracy(groups)], [*BRANCHES], ["erank/gap"]]
    for i, row in enumerate(rows):
        members = [group for group in groups if panel_row(group) == row]
        for axes, panel_columns in zip(panels[3 * i :], columns):
            _last_values(axes, members, panel_columns, series)
        style.panel_title(panels[3 * i], ", ".join(row))
    for look in BRANCHES.values():
        panels[-1].plot([], [], **{**look, **({"color": style.GREY} if len(series) > 1 else {})})
    return figure


def _last_values(axes: Axes, members: Groups, columns: Sequence[str], series: style.Looks) -> None:
    """Draw last values against p, or as a horizontal line if a setting has no p."""
    kept = ("label", "color") if len(series) > 1 else ("label",)
    for column in columns:
        marks = {part: x for part, x in BRANCHES.get(column, {}).items() if part not in kept}
        looks = {name: {**look, "linestyle": "-", **marks} for name, look in series.items()}
        points: dict[str, list[tuple[float, list[float]]]] = defaultdict(list)
        for group in members:
            name, values, p = group.family, group.last(column), group.first.p
            look = looks[name]
            if not values:
                continue
            if p is None:
                axes.axhline(float(np.mean(values)), **{**look, **ACROSS})
            elif diverged(group):
                axes.plot([p], [np.mean(values)], **{**look, **DIVERGED})
            else:
                points[name].append((p, values))
        for name, pairs in points.items():
            look = looks[name]
            x, seeds = zip(*sorted(pairs))
            axes.plot(x, [np.mean(values) for values in seeds], **look)
            axes.vlines(x, [min(v) for v in seeds], [max(v) for v in seeds], look["color"], lw=1)
    axes.set(xlabel="exponent p", ylabel=axis_label(columns[0]))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    style.mark_empty(axes, f"{columns[0]}\nwas not measured")


@partial(
    Plot,
    title="Accuracy, effective rank around the mean and gap of every setting",
    caption="Last values, with the most accurate setting on top. Crosses are settings whose runs "
    "all diverged.",
    needs="several settings that do not only differ in p",
    seeds="Large points: mean of {n} seeds. Small points: single seeds.",
    choose=lambda groups: groups if len(groups) > max(1, len(_with_exponents(groups))) else [],
)
def comparison(groups: Groups, looks: style.Looks) -> Figure:
    measured = accuracy(groups)
    upwards = sorted(groups, key=lambda group: np.mean(group.last(measured) or [-np.inf]))
    names = [style.wrap(g.label, LETTERS * style.char_width(8), 8) for g in upwards]
    height = LINE * (2 + max(name.count("\n") for name in names))
    columns = [measured, "erank/centred", "erank/gap"]
    columns += ["rate/slope"] if any(group.last("rate/slope") for group in groups) else []
    figure, panels = style.figure(len(columns), panel=(3.5, 0.5 + height * len(names)))
    for axes, column in zip(panels, columns):
        for y, group in enumerate(upwards):
            points: Any = {"linestyle": "none", "color": looks[group.label]["color"]}
            points["marker"] = "X" if diverged(group) else "o"
            if values := group.last(column):
                axes.plot(values, [y] * len(values), markersize=2.6, alpha=0.55, **points)
                axes.plot([np.mean(values)], [y], markersize=6, **points)
        axes.set_yticks(range(len(names)), names if axes is panels[0] else [""] * len(names))
        axes.set_ylim(-0.5, len(names) - 0.5)
        axes.set_xlabel(axis_label(column))
        style.mark_empty(axes, f"{column}\nwas not measured")
    return figure
