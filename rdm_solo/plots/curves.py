"""Curves over epochs and seeds: panels with shared limits, and the note below a figure."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rdm_solo.messages import listed
from rdm_solo.plots import style
from rdm_solo.runs.columns import ACCURACY, COLUMNS
from rdm_solo.runs.folder import Run
from rdm_solo.runs.groups import (
    Curve,
    Group,
    counted_runs,
    curve_of,
    run_name,
    runs_behind,
    so_far,
)


class Panel(NamedTuple):
    """A panel over epochs; panels of one ``kind`` share their vertical limits."""

    title: str
    curves: Sequence[tuple[Group, str, style.Look]]  # setting, column and look
    kind: Hashable


def draw_panels(
    panels: Sequence[Panel], columns: int = 4, size: tuple[float, float] = (2.7, 2.35)
) -> Figure:
    """Draw panels over epochs."""
    figure, grid = style.figure(len(panels), columns, size)
    for panel, axes in zip(panels, grid):
        over_epochs(axes, panel.curves)
        style.panel_title(axes, panel.title)
    share_limits(grid, [panel.kind for panel in panels])
    return figure


def over_epochs(axes: Axes, curves: Sequence[tuple[Group, str, style.Look]]) -> None:
    """Draw columns over the epochs; runs behind the others of their setting are thin lines."""
    for group, column, look in curves:
        draw_curve(axes, group.over_epochs(column), look)
        for run in runs_behind(group):  # no key, as their label begins with "_"
            thin = style.look("_behind", look["color"], marker=".", linewidth=0.8, markersize=3)
            draw_curve(axes, curve_of([run], column), thin)
    axes.set_ylabel(axis_label(curves[0][1]))
    style.epoch_axis(axes)
    if not axes.lines:
        style.empty_panel(axes, f"{curves[0][1]}\nwas not measured")


def draw_curve(axes: Axes, curve: Curve, look: style.Look) -> None:
    """Draw the mean with a band from the smallest to the largest seed."""
    measured = np.isfinite(curve.x) & np.isfinite(curve.mean)
    x, mean, low, high = (v[measured] for v in (curve.x, curve.mean, curve.low, curve.high))
    style.draw_line(axes, x, mean, look)
    if np.array_equal(low, high) or look["linestyle"] == "none":
        return
    if len(x) == 1:  # a band needs two epochs
        axes.vlines(x, low, high, colors=look["color"], linewidth=1)
    else:
        axes.fill_between(x, low, high, color=look["color"], alpha=0.16, linewidth=0)


def share_limits(panels: Sequence[Axes], kinds: Sequence[Hashable]) -> None:
    """Give panels of one kind the same vertical limits; empty panels are left as they are."""
    for kind in set(kinds):
        same = [axes for axes, other in zip(panels, kinds) if other == kind and axes.lines]
        limits = [end for axes in same for end in axes.get_ylim()]
        for axes in same:
            axes.set_ylim(min(limits), max(limits))


def blocks(
    drawn: Sequence[Group], kind: Callable[[Group], Hashable]
) -> Iterator[tuple[Any, list[Group]]]:
    """Yield the settings of each panel and their kind; more than fit have several panels."""
    kinds: dict[Hashable, list[Group]] = {}
    for group in drawn:
        kinds.setdefault(kind(group), []).append(group)
    for name, members in kinds.items():
        for start in range(0, len(members), style.SERIES):
            yield name, members[start : start + style.SERIES]


def outputs_of(group: Group) -> tuple[bool, int]:
    """Return what ranks are comparable by: whether outputs are softmaxes, and their dimensions."""
    lam = group.spectrum()[1].get("lam_target")
    return group.first.described.softmax, 0 if lam is None else lam.shape[1]


def axis_label(name: str) -> str:
    """Return a column's label on a vertical axis."""
    column = COLUMNS[name]
    return f"{column.words} (%)" if column.chart == ACCURACY else column.chart


def note(drawn: Sequence[Group], lacking: Sequence[Run] = ()) -> str:
    """Say what bands are, and which runs are unfinished, left out of means or not measured."""
    counted = [counted_runs(group) for group in drawn]
    behind = [run for group in drawn for run in runs_behind(group)]
    seeds = sorted({len(runs) for runs in counted})
    whole = [run for runs in counted for run in runs]
    short = [run for run in whole if run.epochs < int(run.config.get("max_epochs", 0))]
    unmeasured = [run for run in lacking if not any(run is other for other in behind)]
    sentences = []
    if seeds and seeds[-1] > 1:
        number = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
        sentences.append(f"Line: mean of {number} seeds. Band: minimum to maximum.")
    for words, runs in (("Unfinished", short), ("Not in the mean", behind)):
        if runs:
            sentences.append(f"{words}: {listed(f'{run_name(r)} ({so_far(r)})' for r in runs)}.")
    if unmeasured:
        sentences.append(f"Not measured: {listed(map(run_name, unmeasured))}.")
    return " ".join(sentences)
