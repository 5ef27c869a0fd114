"""Figures that compare settings by their last values: against p, and one below another."""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rdm_solo.plots import style
from rdm_solo.plots.curves import axis_label
from rdm_solo.plots.entry import Groups, Plot
from rdm_solo.runs.columns import ACCURACY, charts
from rdm_solo.runs.groups import Group, diverged

# As in every figure, the target has the hollow marker: one exponent alone has no line.
BRANCHES: dict[str, dict[str, Any]] = {
    "erank/target": {"markerfacecolor": "white", "markersize": 5, "markeredgewidth": 1.2},
    "erank/online": {"linestyle": style.ONLINE["linestyle"]},
}
ACROSS: dict[str, Any] = {"linewidth": 1.0, "markevery": [1], "clip_on": False, "zorder": 1.5}
DIVERGED: dict[str, Any] = {"marker": "X", "markersize": 6, "label": "_diverged"}
# Letters in a line of a setting's name beside its points, and the height of a line in inches.
LETTERS, LINE = 26, 0.16


def accuracy(members: Groups) -> str:
    """Return the column of the accuracy: kNN's, or the online classifier's where kNN is missing."""
    names = [column.name for column in charts()[ACCURACY]]
    measured = [name for name in names if any(group.last(name) for group in members)]
    return (measured or names)[-1]


def row_of(group: Group) -> tuple[str, str]:
    """Return what settings of one row of panels have in common."""
    return group.method, group.first.dataset


def _with_exponents(everything: Groups) -> list[Group]:
    """Return all settings of the methods that were run with several exponents."""
    rows = dict.fromkeys(row_of(group) for group in everything if group.first.p is not None)
    if len({run.p for group in everything for run in group.runs} - {None}) < 2:
        return []
    return [group for row in rows for group in everything if row_of(group) == row]


@partial(
    Plot,
    section="best",
    title="Accuracy, effective rank and gap against p",
    caption="The last values of each run. Points are means over seeds, bars go from the smallest "
    "to the largest, crosses are settings that diverged. Runs without an exponent are horizontal "
    "lines. p = 0 is no filter. A wider gap is not always better: look at where accuracy peaks.",
    needs="runs with several exponents p (filter=..._pow)",
    choose=_with_exponents,
)
def sweep(drawn: Groups, looks: style.Looks) -> Figure:
    first = sorted(drawn, key=lambda group: group.first.p is None)
    series = style.looks(_series(group) for group in first)
    rows = [
        (row, names[i : i + style.SERIES])
        for row in dict.fromkeys(map(row_of, drawn))
        for names in [list(dict.fromkeys(_series(g) for g in first if row_of(g) == row))]
        for i in range(0, len(names), style.SERIES)
    ]
    several = len({dataset for (_, dataset), _ in rows}) > 1
    figure, panels = style.figure(3 * len(rows), columns=3, panel=(3.3, 2.6))
    columns = [[accuracy(drawn)], [*BRANCHES], ["erank/gap"]]
    for i, (row, names) in enumerate(rows):
        members = [group for group in drawn if row_of(group) == row]
        for axes, of_panel in zip(panels[3 * i :], columns):
            _last_values(axes, members, of_panel, {name: series[name] for name in names})
        style.panel_title(panels[3 * i], ", ".join(row) if several else row[0])
    for name, of_branch in BRANCHES.items():
        label = f"branch: {name.partition('/')[2]}"
        panels[-1].plot([], [], color="0.4", marker="o", label=label, **of_branch)
    return figure


def _series(group: Group) -> str:
    """Return the name of the curve that a setting is a point of."""
    if group.first.p is None:
        return group.variant
    chosen = group.first.chosen_filter
    if chosen.power and chosen.formula:
        return f"{chosen.branch} filter {chosen.formula.format(p='p')}{group.suffix}"
    return chosen.label + group.suffix


def _last_values(axes: Axes, members: Groups, columns: Sequence[str], series: style.Looks) -> None:
    """Draw last values against p, and across the panel where there is no p."""
    for column in columns:
        points: dict[str, list[tuple[float, list[float]]]] = defaultdict(list)
        looks = {
            name: {**look, "linestyle": "-", **BRANCHES.get(column, {})}
            for name, look in series.items()
        }
        for group in members:
            name, values, p = _series(group), group.last(column), group.first.p
            if name not in looks or not values:
                continue
            if p is None:
                axes.axhline(float(np.mean(values)), **{**looks[name], **ACROSS})
            elif diverged(group):
                axes.plot([p], [np.mean(values)], **{**looks[name], **DIVERGED})
            else:
                points[name].append((p, values))
        for name, pairs in points.items():
            x, seeds = zip(*sorted(pairs))
            axes.plot(x, [np.mean(values) for values in seeds], **looks[name])
            axes.vlines(
                x, list(map(min, seeds)), list(map(max, seeds)), looks[name]["color"], linewidth=1
            )
    axes.set(xlabel="exponent $p$", ylabel=axis_label(columns[0]))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    if not axes.lines:
        style.empty_panel(axes, f"{columns[0]}\nwas not measured")


@partial(
    Plot,
    section="best",
    title="Accuracy, effective rank and gap of every setting",
    caption="The last values, the most accurate setting on top. A large point is the mean over "
    "seeds, a small one is a seed, a cross is a setting that diverged. If two settings' points "
    "overlap, the seeds do not separate them.",
    needs="several settings",
    choose=lambda everything: everything if len(everything) > 1 else [],
)
def comparison(drawn: Groups, looks: style.Looks) -> Figure:
    measured = accuracy(drawn)
    upwards = sorted(drawn, key=lambda group: np.mean(group.last(measured) or [-np.inf]))
    names = [style.wrap(g.label, LETTERS * style.letter(8), 8) for g in upwards]
    heights = [LINE * (0.8 + name.count("\n") + 1) for name in names]
    middles = np.cumsum(heights) - np.array(heights) / 2
    figure, panels = style.figure(3, columns=3, panel=(3.5, 0.5 + sum(heights)))
    for axes, column in zip(panels, (measured, "erank/centred", "erank/gap")):
        for group, y in zip(upwards, middles):
            _points(axes, group, column, float(y), looks[group.label]["color"])
        if not axes.lines:
            style.empty_panel(axes, f"{column}\nwas not measured")
            continue
        axes.set_yticks(middles, names)
        axes.set_ylim(0, sum(heights))
        axes.set_xlabel(axis_label(column))
        if column == "erank/gap":
            axes.axvline(0, color="0.5", linewidth=0.8, zorder=0)
    return figure


def _points(axes: Axes, group: Group, column: str, y: float, color: str) -> None:
    if values := group.last(column):
        marker = "X" if diverged(group) else "o"
        seeds: dict[str, Any] = {"linestyle": "none", "marker": marker, "color": color}
        axes.plot(values, [y] * len(values), markersize=2.6, alpha=0.55, **seeds)
        axes.plot([np.mean(values)], [y], markersize=6, **seeds)
