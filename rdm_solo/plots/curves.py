"""Curves over seeds in a picture, and the line beneath it: what is a mean, what is missing."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from rdm_solo.messages import listed
from rdm_solo.plots.style import marked
from rdm_solo.runs.columns import ACCURACY, COLUMNS
from rdm_solo.runs.folder import Run
from rdm_solo.runs.groups import Curve, Group, counted_runs, run_name, runs_behind, so_far


def draw_curve(axes: Axes, curve: Curve, band: bool = True, **style: Any) -> None:
    """A line, marked where its points are few, and a band over the seeds."""
    measured = np.isfinite(curve.x) & np.isfinite(curve.mean)
    x, mean, low, high = (v[measured] for v in (curve.x, curve.mean, curve.low, curve.high))
    if not len(x):
        return
    axes.plot(x, mean, **{"markevery": marked(len(x)), **style})
    if not band or np.array_equal(low, high):
        return
    if len(x) == 1:  # a band of one epoch has no width
        axes.vlines(x, low, high, colors=style["color"], linewidth=1)
    else:
        axes.fill_between(x, low, high, color=style["color"], alpha=0.16, linewidth=0)


def axis_label(name: str) -> str:
    """A column of metrics.csv on a vertical axis."""
    column = COLUMNS[name]
    return f"{column.words} (%)" if column.chart == ACCURACY else column.chart


def note(drawn: Sequence[Group], what: str = "", lacking: Sequence[Run] = ()) -> str:
    """The line beneath: how many seeds, which runs did not end, which lack what is drawn."""
    counts = sorted({len(counted_runs(group)) for group in drawn})
    behind = [run for group in drawn for run in runs_behind(group)]
    said = []
    if counts and counts[-1] > 1:
        seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        said.append(f"Mean of n = {seeds} seeds, from the smallest to the largest.")
    short = [run for group in drawn for run in counted_runs(group) if run.epochs < _asked(run)]
    if short:
        said.append(f"Unfinished: {listed(map(_so_far, short))}.")
    if behind:
        said.append(f"Not in the mean: {listed(map(_so_far, behind))}.")
    missing = [run_name(run) for run in lacking if not any(run is other for other in behind)]
    if missing:
        said.append(f"Without {what}: {listed(missing)}.")
    return " ".join(said)


def _asked(run: Run) -> int:
    return int(run.config.get("max_epochs", 0))


def _so_far(run: Run) -> str:
    return f"{run_name(run)} ({so_far(run)})"
