"""Pictures of what changes over training: effective ranks, alignment, losses."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rdm_solo.messages import UserError
from rdm_solo.plots import style
from rdm_solo.plots.curves import (
    axis_label,
    draw_curve,
    looks,
    note,
    outputs_of,
    share_limits,
    within_blocks,
)
from rdm_solo.runs.columns import ACCURACY, charts
from rdm_solo.runs.folder import Run
from rdm_solo.runs.groups import Group, curve_of, groups, runs_behind

ERANK: dict[str, dict[str, Any]] = {
    "erank/target": {**style.TARGET, "label": "target"},
    "erank/online": {**style.ONLINE, "label": "online"},
}
ALIGNMENT: dict[str, dict[str, Any]] = {
    "alignment/online_target": {
        **{"color": style.BLACK, "linestyle": "-", "marker": "o"},
        "label": "plain mean (99.99 % of the eigenvalues' sum)",
    },
    "alignment/online_target_paper_m": {
        **{"color": style.ORANGE, "linestyle": (0, (1.2, 1.2)), "marker": "D"},
        "label": "plain mean (512 eigenvectors; BYOL: 128)",
    },
    "alignment/online_target_weighted": {
        **{"color": style.GREEN, "linestyle": (0, (5, 2)), "marker": "^"},
        "label": "weighted by eigenvalues",
    },
}
# A run behind the others of its setting; the key leaves out what begins with an underscore.
THIN: dict[str, Any] = {
    **{"linewidth": 0.8, "alpha": 0.7, "marker": ".", "markersize": 3, "label": "_behind"},
}


@style.styled
def effective_rank(runs: Sequence[Run]) -> Figure:
    """Effective rank of both branches over training, a panel for each setting (the paper's
    Figures 1 and 7). Outputs of one kind share their limits."""
    return _panels(runs, ERANK)


@style.styled
def alignment(runs: Sequence[Run]) -> Figure:
    """Alignment of the branches' eigenspaces over training, as printed and weighted.

    The paper's Figure 3.
    """
    return _panels(runs, ALIGNMENT, limit=1.03)


def _panels(
    runs: Sequence[Run], columns: Mapping[str, dict[str, Any]], limit: float | None = None
) -> Figure:
    """One panel for each setting that has any of the columns."""
    shown, words = _with_any(runs, columns)
    made, panels = style.figure(len(shown))
    for group, axes in zip(shown, panels):
        over_epochs(axes, [(group, *column) for column in columns.items()])
        style.panel_title(axes, group.label)
    for kind in {outputs_of(group) for group in shown}:
        share_limits(axes for group, axes in zip(shown, panels) if outputs_of(group) == kind)
    for axes in panels:
        axes.set_ylim(0, limit)
    return style.finish(made, note=words)


def _with_any(runs: Sequence[Run], columns: Mapping[str, Any]) -> tuple[list[Group], str]:
    """The settings that have any of the columns, and the line beneath their picture."""
    lacking = [run for run in runs if not any(np.isfinite(run.last(c)) for c in columns)]
    everything = groups(runs)
    shown = [g for g in everything if any(len(g.over_epochs(c).x) for c in columns)]
    if not shown:
        raise UserError(f"No run has a column of {', '.join(columns)}; {_why_none(columns)}")
    return shown, note(shown, axis_label(next(iter(columns))), lacking)


def _why_none(columns: Iterable[str]) -> str:
    """What may be the reason that no run has any of the columns."""
    if {*columns} <= {column.name for column in charts()[ACCURACY]}:
        return (
            "has an epoch ended, are there labels and validation images, and was the accuracy "
            "switched off?"
        )
    if {*columns} == {"train/loss"}:
        return "has an epoch ended?"
    return "has an epoch ended, and were the diagnostics on?"


@style.styled
def losses(runs: Sequence[Run]) -> Figure:
    """Training loss over the epochs; methods whose losses have one minimum share a panel.

    The paper's Figure 9.
    """
    shown, words = _with_any(runs, {"train/loss": None})
    everything = groups(runs)

    def scale(group: Group) -> tuple[str, str]:
        least = group.first.described.loss_minimum
        return group.first.dataset, group.first.method if least is None else f"from {least:g}"

    found = within_blocks(everything, shown, scale)
    parts = [(kind, members, "train/loss") for kind, members in found]
    several = len({dataset for (dataset, _), _, _ in parts}) > 1
    titles = []
    for (dataset, _), members, _ in parts:
        methods = ", ".join(dict.fromkeys(group.method for group in members))
        titles.append(f"{methods}, {dataset}" if several else methods)
    return _of_settings(everything, parts, titles, words)


@style.styled
def accuracies(runs: Sequence[Run]) -> Figure:
    """Accuracy over the epochs: of kNN, and of the online classifier."""
    columns = {column.name: column for column in reversed(charts()[ACCURACY])}
    shown, words = _with_any(runs, columns)
    everything = groups(runs)
    parts = [
        ((dataset, name), some, name)
        for name in columns
        for dataset, members in within_blocks(everything, shown, lambda g: g.first.dataset)
        if (some := [group for group in members if len(group.over_epochs(name).x)])
    ]
    several = len({dataset for (dataset, _), _, _ in parts}) > 1
    titles = [dataset if several else "" for (dataset, _), _, _ in parts]
    return _of_settings(everything, parts, titles, words)


def _of_settings(
    everything: Sequence[Group],
    parts: Sequence[tuple[tuple[str, str], Sequence[Group], str]],
    titles: Sequence[str],
    words: str,
) -> Figure:
    """A panel for each part: its kind, its settings and their column. Parts of one kind share their
    limits. With more settings than a panel may have, each panel has a key of its own."""
    keyed = len(everything) > style.SERIES
    look = looks(everything)
    size = (5.2, 2.8) if keyed else (3.2, 2.6)
    made, panels = style.figure(len(parts), columns=2 if keyed else 3, panel=size)
    for (_, members, column), title, axes in zip(parts, titles, panels):
        over_epochs(axes, [(group, column, look[group.label]) for group in members])
        style.panel_title(axes, title)
        if keyed:
            style.key_beside(axes)
    for kind in {kind for kind, _, _ in parts}:
        share_limits(axes for (own, _, _), axes in zip(parts, panels) if own == kind)
    return style.finish(made, note=words)


def over_epochs(axes: Axes, curves: Sequence[tuple[Group, str, dict[str, Any]]]) -> None:
    """Curves of a group's column, each in its look. Runs behind the others of their group are thin
    lines as far as they went."""
    for group, column, look in curves:
        draw_curve(axes, group.over_epochs(column), **look)
        for run in runs_behind(group):
            own = curve_of([run], column)
            axes.plot(own.x, own.mean, **THIN, color=look["color"])
    axes.set_ylabel(axis_label(curves[0][1]))
    style.epoch_axis(axes)
    if not axes.lines:
        style.empty_panel(axes, f"{curves[0][1]}\nwas not measured")
