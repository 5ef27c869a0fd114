"""What a sweep of the exponent gives: accuracy, rank and gap against p."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rdm_solo.messages import UserError
from rdm_solo.plots import style
from rdm_solo.plots.curves import axis_label, note
from rdm_solo.runs.columns import ACCURACY, COLUMNS, charts
from rdm_solo.runs.folder import Run
from rdm_solo.runs.groups import Group, counted_runs, diverged, groups, latest

# As in every figure, the target's marker is hollow: a series of one exponent has no line.
BRANCHES: dict[str, dict[str, Any]] = {
    "erank/target": {
        **{name: style.TARGET[name] for name in ("linestyle", "markerfacecolor")},
        **{"markersize": 5, "markeredgewidth": 1.2},
    },
    "erank/online": {"linestyle": style.ONLINE["linestyle"]},
}


@style.styled
def sweep(runs: Sequence[Run]) -> Figure:
    """Last accuracy, effective rank and gap against p, a row of panels for each method.

    Points are means over seeds, bars go from the smallest to the largest. Runs without an exponent
    are horizontal lines, marked at the right edge; settings that diverged are crosses.
    Runs behind the others of their setting are left out.
    """
    used = drawn_in_sweep(groups(runs))
    if not used:
        raise UserError("No run has an exponent; sweep needs runs of filter=..._pow with some p.")
    first = sorted(used, key=lambda group: group.first.p is None)
    looks = style.looks(_name(group) for group in first)
    rows = [
        (row, names[i : i + style.SERIES])
        for row in dict.fromkeys(map(row_of, used))
        for names in [list(dict.fromkeys(_name(g) for g in first if row_of(g) == row))]
        for i in range(0, len(names), style.SERIES)
    ]
    several = len({dataset for (_, dataset), _ in rows}) > 1
    made, panels = style.figure(3 * len(rows), columns=3, panel=(3.3, 2.6))
    columns = [[accuracy(used)], [*BRANCHES], ["erank/gap"]]
    for i, (row, series) in enumerate(rows):
        members = [group for group in used if row_of(group) == row]
        of_row = panels[3 * i : 3 * i + 3]
        for axes, names in zip(of_row, columns):
            _draw(axes, members, names, {name: looks[name] for name in series})
        style.panel_title(of_row[0], ", ".join(row) if several else row[0])
    lacking = [run for run in runs if run.p is not None and np.isnan(run.last("erank/gap"))]
    for name, look in BRANCHES.items():
        label = f"branch: {name.partition('/')[2]}"
        panels[-1].plot([], [], color="0.4", marker="o", label=label, **look)
    words = [note(used, "erank/gap", lacking), *_of_earlier_epochs(used, accuracy(used))]
    return style.finish(made, note=" ".join(filter(None, words)))


def _of_earlier_epochs(groups: Sequence[Group], column: str) -> list[str]:
    """A sentence for each setting whose last epoch did not measure the column."""
    found = []
    for group in groups:
        counted = counted_runs(group)
        epoch, values = latest(counted, column)
        if values and epoch < max(run.last_epoch for run in counted):
            found.append(f"{COLUMNS[column].words} of {group.label}: epoch {epoch}.")
    return found


def drawn_in_sweep(everything: Sequence[Group]) -> list[Group]:
    """Those that :func:`sweep` draws: all of the methods that were run with an exponent."""
    rows = dict.fromkeys(row_of(group) for group in everything if group.first.p is not None)
    return [group for row in rows for group in everything if row_of(group) == row]


def accuracy(members: Sequence[Group]) -> str:
    """The column that holds the accuracy: kNN's, or the online classifier's without any."""
    names = [column.name for column in charts()[ACCURACY]]
    measured = [name for name in names if any(group.last(name) for group in members)]
    return (measured or names)[-1]


def row_of(group: Group) -> tuple[str, str]:
    return group.method, group.first.dataset


def _name(group: Group) -> str:
    """The series that a group is a point of, or its own name."""
    if group.first.p is None:
        return group.variant
    chosen = group.first.chosen_filter
    if chosen.power and chosen.formula:
        return f"{chosen.branch} filter {chosen.formula.format(p='p')}{group.suffix}"
    return chosen.label + group.suffix


def _draw(
    axes: Axes,
    members: Sequence[Group],
    columns: Sequence[str],
    looks: dict[str, dict[str, Any]],
) -> None:
    """The last values of the columns against p; those without p across the panel."""
    for name, look in looks.items():
        same = [group for group in members if _name(group) == name]
        for column in columns:
            of_branch = {**look, "linestyle": "-", **BRANCHES.get(column, {})}
            points = []
            for group, values in [(g, g.last(column)) for g in same if g.last(column)]:
                if group.first.p is None:
                    _across(axes, float(np.mean(values)), of_branch)
                elif diverged(group):
                    crossed = {**of_branch, "marker": "X", "markersize": 6, "label": "_diverged"}
                    axes.plot([group.first.p], [np.mean(values)], **crossed)
                else:
                    points.append((group.first.p, values))
            if points:
                _against_p(axes, sorted(points), of_branch)
    axes.set(xlabel="exponent $p$", ylabel=axis_label(columns[0]))
    if not axes.lines:
        style.empty_panel(axes, f"{columns[0]}\nwas not measured")
    else:
        _exponents_axis(axes, sorted({g.first.p for g in members if g.first.p is not None}))


def _exponents_axis(axes: Axes, exponents: Sequence[float]) -> None:
    """Ticks at the exponents if they are three at most and lie apart, so that no labels meet."""
    apart = np.diff(exponents) >= 0.25 * (exponents[-1] - exponents[0])
    if len(exponents) <= 3 and apart.all():
        axes.set_xticks(exponents, [f"{p:g}".replace("-", "\N{MINUS SIGN}") for p in exponents])
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=4))


def _against_p(
    axes: Axes, points: Sequence[tuple[float, list[float]]], look: dict[str, Any]
) -> None:
    p, values = zip(*points)
    axes.plot(p, [np.mean(seeds) for seeds in values], **look)
    low, high = ([end(seeds) for seeds in values] for end in (min, max))
    axes.vlines(p, low, high, colors=look["color"], linewidth=1)


def _across(axes: Axes, value: float, look: dict[str, Any]) -> None:
    """A line through the panel, whose marker stands at the right edge: no exponent has it."""
    thin = {**look, "linewidth": 1.0, "markevery": [1], "clip_on": False, "zorder": 1.5}
    axes.plot([0, 1], [value, value], transform=axes.get_yaxis_transform(), **thin)
