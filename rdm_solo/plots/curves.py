"""Curves over seeds in a picture: the look of each setting, the limits that panels share, and the
line beneath."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from rdm_solo.messages import listed
from rdm_solo.plots import style
from rdm_solo.plots.style import marked
from rdm_solo.runs.columns import ACCURACY, COLUMNS
from rdm_solo.runs.folder import Run
from rdm_solo.runs.groups import Curve, Group, counted_runs, run_name, runs_behind, so_far


def blocks(everything: Sequence[Group]) -> list[list[Group]]:
    """The settings in blocks of as many as a panel may have, in their order; where one panel is not
    enough, each family of methods has blocks of its own.

    All figures of the same runs have the same blocks, and :func:`looks` gives each setting of a
    block a look that no other of the block has: a colour means the same setting in all of them.
    """
    size = style.SERIES
    families: dict[str, list[Group]] = {}
    for group in everything:
        family = group.first.described.family if len(everything) > size else ""
        families.setdefault(family, []).append(group)
    return [
        members[i : i + size] for members in families.values() for i in range(0, len(members), size)
    ]


def looks(everything: Sequence[Group]) -> dict[str, dict[str, Any]]:
    """The look of each setting by its label, which depends on its place in its block alone."""
    found = list(style.looks(map(str, range(style.SERIES))).values())
    return {
        group.label: {**look, "label": group.label}
        for block in blocks(everything)
        for group, look in zip(block, found)
    }


def within_blocks(
    everything: Sequence[Group], drawn: Sequence[Group], kind: Callable[[Group], Hashable]
) -> Iterator[tuple[Any, list[Group]]]:
    """The settings that are drawn, those of one kind and one block together."""
    names = {group.label for group in drawn}
    for name in dict.fromkeys(map(kind, drawn)):
        for block in blocks(everything):
            members = [group for group in block if group.label in names and kind(group) == name]
            if members:
                yield name, members


def outputs_of(group: Group) -> tuple[bool, int]:
    """What the outputs are that a rank is of: whether a softmax, and how many dimensions.

    Ranks of the same kind are compared; panels of others have limits of their own.
    """
    lam = group.spectrum()[1].get("lam_target")
    return group.first.described.softmax, 0 if lam is None else lam.shape[1]


def share_limits(panels: Iterable[Axes]) -> None:
    """Give panels that have curves the same vertical limits."""
    drawn = [axes for axes in panels if axes.lines]
    if drawn:
        low, high = zip(*(axes.get_ylim() for axes in drawn))
        for axes in drawn:
            axes.set_ylim(min(low), max(high))


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
