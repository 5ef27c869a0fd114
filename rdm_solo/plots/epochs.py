"""Pictures of what changes over training: effective ranks, alignment, losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rdm_solo.plots.curves import draw_curve, note
from rdm_solo.plots.style import (
    BLACK,
    GREEN,
    ONLINE,
    ORANGE,
    TARGET,
    empty_panel,
    epoch_axis,
    figure,
    finish,
    keys,
    panel_title,
    series,
    styled,
)
from rdm_solo.runs.folder import Run
from rdm_solo.runs.groups import Group, curve_of, groups, runs_behind

__all__ = ["alignment", "effective_rank", "losses"]

ERANK: dict[str, dict[str, Any]] = {"erank/target": TARGET, "erank/online": ONLINE}
ALIGNMENT: dict[str, dict[str, Any]] = {
    "alignment/online_target": {"color": BLACK, "linestyle": "-", "marker": "o"},
    "alignment/online_target_paper_m": {
        "color": ORANGE,
        "linestyle": (0, (1.2, 1.2)),
        "marker": "D",
    },
    "alignment/online_target_weighted": {"color": GREEN, "linestyle": (0, (5, 2)), "marker": "^"},
}
NAMES = {
    "erank/target": "target",
    "erank/online": "online",
    "alignment/online_target": "plain mean (99.99 % of the eigenvalues' sum)",
    "alignment/online_target_paper_m": "plain mean (512 eigenvectors; BYOL: 128)",
    "alignment/online_target_weighted": "weighted by eigenvalues",
}
# A run behind the others of its setting; the key leaves out what begins with an underscore.
THIN: dict[str, Any] = {
    **{"linewidth": 0.8, "alpha": 0.7, "marker": ".", "markersize": 3, "label": "_behind"},
}
# The columns that may hold the accuracy which the paper measures by linear probing.
ACCURACY = {
    "val/acc1": "online linear classifier,\nvalidation (%)",
    "val/knn_acc1": "kNN accuracy (%)",
}


@styled
def effective_rank(runs: Sequence[Run], title: str = "") -> Figure:
    """Effective rank of both branches over training, a panel for each setting.

    The paper's Figures 1 and 7.
    """
    return _panels(runs, ERANK, "effective rank", "effective rank", title)


@styled
def alignment(runs: Sequence[Run], title: str = "") -> Figure:
    """Alignment of the branches' eigenspaces over training, as printed and weighted.

    The paper's Figure 3.
    """
    return _panels(runs, ALIGNMENT, "alignment of $C_p$ and $C_z$", "alignment", title, limit=1.03)


def _panels(
    runs: Sequence[Run],
    columns: Mapping[str, dict[str, Any]],
    ylabel: str,
    what: str,
    title: str,
    limit: float | None = None,
) -> Figure:
    """One panel for each setting that has any of the columns."""
    everything = groups(runs)
    shown = [g for g in everything if any(len(g.over_epochs(c).x) for c in columns)]
    if not shown:
        raise ValueError(
            f"No run has a column of {', '.join(columns)}; were diagnostics.every_n_epochs 0?"
        )
    made, panels = figure(len(shown))
    for group, axes in zip(shown, panels):
        for column, style in columns.items():
            over_epochs(axes, [group], column, {group.label: style}, ylabel, NAMES[column])
        axes.set_ylim(0, limit)
        if len(shown) > 1 or not title:
            panel_title(axes, group.label)
    lacking = [r for g in everything for r in g.runs if not _measured(r, columns)]
    return finish(made, keys(*panels), title, note(shown, {what: lacking}, thin=True))


def _measured(run: Run, columns: Mapping[str, Any]) -> bool:
    return any(np.isfinite(run.metrics.get(column, np.empty(0))).any() for column in columns)


@styled
def losses(runs: Sequence[Run], title: str = "") -> Figure:
    """Training loss over the epochs; methods whose losses have one minimum share a panel.

    The paper's Figure 9.
    """
    everything = groups(runs)
    shown = [g for g in everything if len(g.over_epochs("train/loss").x)]
    if not shown:
        raise ValueError("No run has a column train/loss in its metrics.csv; has an epoch ended?")
    panels_of: dict[tuple[str, str], list[Group]] = {}
    for group in shown:
        least = group.first.described.loss_minimum
        scale = group.first.method if least is None else f"from {least:g}"
        panels_of.setdefault((group.first.dataset, scale), []).append(group)
    several = len({dataset for dataset, _ in panels_of}) > 1
    styles = {group.label: series(i) for i, group in enumerate(shown)}
    made, panels = figure(len(panels_of), columns=3, panel=(3.2, 2.6))
    for ((dataset, _), members), axes in zip(panels_of.items(), panels):
        over_epochs(axes, members, "train/loss", styles, "training loss")
        methods = ", ".join(dict.fromkeys(group.method for group in members))
        panel_title(axes, f"{methods}, {dataset}" if several else methods)
    lacking = [r for g in everything for r in g.runs if not _measured(r, {"train/loss": None})]
    return finish(made, keys(*panels), title, note(shown, {"a loss": lacking}, thin=True))


def over_epochs(
    axes: Axes,
    drawn: Sequence[Group],
    column: str,
    styles: Mapping[str, dict[str, Any]],
    ylabel: str,
    name: str = "",
) -> None:
    """A column of each group, in the style under its label; the key names it so, or ``name``.

    Runs behind the others of their group are thin lines as far as they went.
    """
    epochs: list[float] = [x for line in axes.lines for x in np.asarray(line.get_xdata())]
    curves = [(group, group.over_epochs(column)) for group in drawn]
    curves = [(group, curve) for group, curve in curves if len(curve.x)]
    alone = len(curves) > 1 and all(len(curve.x) == 1 for _, curve in curves)
    for i, (group, curve) in enumerate(curves):
        if alone:  # side by side, since one epoch is no line
            curve = replace(curve, x=curve.x + 0.15 * (i - (len(curves) - 1) / 2))
        draw_curve(axes, curve, name or group.label, **styles[group.label])
        epochs += list(np.round(curve.x))
        for run in runs_behind(group):
            own = curve_of([run], column)
            axes.plot(own.x, own.mean, **THIN, color=styles[group.label]["color"])
    axes.set_ylabel(ylabel)
    epoch_axis(axes, np.array(epochs))
    if not epochs and not name:
        empty_panel(axes, f"{column}\nwas not measured")
