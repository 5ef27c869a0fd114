"""Pictures of what changes over training: effective ranks, alignment, losses."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rdm_solo.plots import style
from rdm_solo.plots.curves import axis_label, draw_curve, note
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
    """Effective rank of both branches over training, a panel for each setting.

    The paper's Figures 1 and 7.
    """
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
        axes.set_ylim(0, limit)
        style.panel_title(axes, group.label)
    return style.finish(made, note=words)


def _with_any(runs: Sequence[Run], columns: Mapping[str, Any]) -> tuple[list[Group], str]:
    """The settings that have any of the columns, and the line beneath their picture."""
    lacking = [run for run in runs if not any(np.isfinite(run.last(c)) for c in columns)]
    everything = groups(runs)
    shown = [g for g in everything if any(len(g.over_epochs(c).x) for c in columns)]
    if not shown:
        raise ValueError(
            f"No run has a column of {', '.join(columns)}; has an epoch ended, and were the "
            "diagnostics on?"
        )
    return shown, note(shown, axis_label(next(iter(columns))), lacking)


@style.styled
def losses(runs: Sequence[Run]) -> Figure:
    """Training loss over the epochs; methods whose losses have one minimum share a panel.

    The paper's Figure 9.
    """
    shown, words = _with_any(runs, {"train/loss": None})
    panels_of: dict[tuple[str, str], list[Group]] = {}
    for group in shown:
        least = group.first.described.loss_minimum
        scale = group.first.method if least is None else f"from {least:g}"
        panels_of.setdefault((group.first.dataset, scale), []).append(group)
    several = len({dataset for dataset, _ in panels_of}) > 1
    looks = style.looks(group.label for group in shown)
    made, panels = style.figure(len(panels_of), columns=3, panel=(3.2, 2.6))
    for ((dataset, _), members), axes in zip(panels_of.items(), panels):
        over_epochs(axes, [(g, "train/loss", looks[g.label]) for g in members])
        methods = ", ".join(dict.fromkeys(group.method for group in members))
        style.panel_title(axes, f"{methods}, {dataset}" if several else methods)
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
