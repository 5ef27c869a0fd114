"""What a sweep of the exponent gives: accuracy, rank and gap against p."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rdm_solo.plots.curves import note
from rdm_solo.plots.epochs import ACCURACY
from rdm_solo.plots.style import empty_panel, figure, finish, keys, panel_title, series, styled
from rdm_solo.runs.folder import Run
from rdm_solo.runs.groups import Group, groups

__all__ = ["drawn_in_sweep", "sweep"]


@styled
def sweep(runs: Sequence[Run], accuracy: str = "val/knn_acc1", title: str = "") -> Figure:
    """Last accuracy, effective rank and gap against p, a row of panels for each method.

    Points are means over seeds, bars go from the smallest to the largest. Runs without an exponent
    are horizontal lines, marked at the right edge. Runs behind the others of their setting are
    left out.
    """
    used = drawn_in_sweep(groups(runs))
    if not used:
        raise ValueError("No run has an exponent; sweep needs runs of filter=..._pow with some p.")
    column, instead = _accuracy(used, accuracy)
    rows = list(dict.fromkeys(map(_row, used)))
    of = {row: [group for group in used if _row(group) == row] for row in rows}
    first = sorted(used, key=lambda group: group.first.p is None)
    styles = {n: series(i) for i, n in enumerate(dict.fromkeys(_name(g) for g in first))}
    several = len({dataset for _, dataset in rows}) > 1
    made, panels = figure(3 * len(rows), columns=3, panel=(3.3, 2.6))
    for row, members in enumerate(of.values()):
        method, dataset = rows[row]
        left, middle, right = panels[3 * row : 3 * row + 3]
        _draw(left, members, {column: ""}, styles)
        _draw(middle, members, {"erank/target": "target", "erank/online": "online"}, styles)
        _draw(right, members, {"erank/gap": ""}, styles)
        left.set_ylabel(ACCURACY.get(column, column))
        middle.set_ylabel("effective rank")
        right.set_ylabel("gap (target − online)")
        panel_title(left, f"{method}, {dataset}" if several else method)
    words = note(used, {"spectra": [r for g in used for r in g.runs if not _ranked(r)]})
    words = words.replace("band: smallest to largest", "bars: smallest to largest")
    branches = [
        Line2D([], [], color="0.4", linestyle=dash, label=f"effective rank of the {branch} branch")
        for branch, dash in BRANCHES.items()
    ]
    shown = [*keys(*panels), *branches]
    return finish(made, shown, title, " ".join(filter(None, [instead, words])))


def drawn_in_sweep(everything: Sequence[Group]) -> list[Group]:
    """Those that :func:`sweep` draws: all of the methods that were run with an exponent."""
    rows = dict.fromkeys(_row(group) for group in everything if group.first.p is not None)
    return [group for row in rows for group in everything if _row(group) == row]


def _row(group: Group) -> tuple[str, str]:
    return group.method, group.first.dataset


BRANCHES: dict[str, Any] = {"target": "-", "online": (0, (4, 2))}


def _accuracy(everything: Sequence[Group], wanted: str) -> tuple[str, str]:
    """The column of accuracies that was measured, and a word where it is not the wanted one."""
    for column in dict.fromkeys([wanted, *ACCURACY]):
        if any(group.last(column) for group in everything):
            return column, "" if column == wanted else f"{column}: {wanted} was not measured."
    return wanted, ""


def _name(group: Group) -> str:
    """The series that a group is a point of, or its own name."""
    if group.first.p is None:
        return group.variant
    chosen = group.first.chosen_filter
    if chosen.power and chosen.formula:
        return f"{chosen.branch} filter {chosen.formula.format(p='p')}{group.suffix}"
    return chosen.label + group.suffix


def _ranked(run: Run) -> bool:
    return bool(np.isfinite(run.last("erank/gap")))


def _draw(
    axes: Axes,
    members: Sequence[Group],
    columns: dict[str, str],
    styles: dict[str, dict[str, Any]],
) -> None:
    """The last values of the columns against p; those without p across the panel."""
    any_drawn = False
    for name in [name for name in styles if any(_name(group) == name for group in members)]:
        same = sorted(
            (g for g in members if _name(g) == name), key=lambda group: group.first.p or 0.0
        )
        for column, branch in columns.items():
            measured = [(g.first.p, g.last(column)) for g in same if g.last(column)]
            style = {**styles[name], "linestyle": BRANCHES.get(branch, "-"), "label": name}
            for _, values in measured if same[0].first.p is None else []:
                _across(axes, float(np.mean(values)), style)
            if measured and same[0].first.p is not None:
                _against_p(axes, measured, style)
            any_drawn = any_drawn or bool(measured)
    axes.set_xlabel("exponent $p$")
    exponents = {group.first.p for group in members if group.first.p is not None}
    if len(exponents) == 1:
        axes.set_xlim(min(exponents) - 0.5, min(exponents) + 0.5)
    if not any_drawn:
        empty_panel(axes, f"{next(iter(columns))}\nwas not measured")


def _against_p(
    axes: Axes, measured: Sequence[tuple[Any, list[float]]], style: dict[str, Any]
) -> None:
    p = np.array([p for p, _ in measured])
    mean, low, high = (np.array([f(v) for _, v in measured]) for f in (np.mean, np.min, np.max))
    axes.plot(p, mean, **style)
    axes.vlines(p, low, high, colors=style["color"], linewidth=1)


def _across(axes: Axes, value: float, style: dict[str, Any]) -> None:
    """A line through the panel, whose marker stands at the right edge: no exponent has it."""
    thin = {**style, "linewidth": 1.0, "markevery": [1], "clip_on": False, "zorder": 1.5}
    axes.plot([0, 1], [value, value], transform=axes.get_yaxis_transform(), **thin)
