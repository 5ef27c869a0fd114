"""Figures over training: effective ranks, alignment, losses, accuracies, and all other charts."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rdm_solo.plots import style
from rdm_solo.plots.plot import Groups, Plot
from rdm_solo.runs import columns
from rdm_solo.runs.columns import ACCURACY, COLUMNS, charts
from rdm_solo.runs.groups import Curve, Group, curve_of

Kind = TypeVar("Kind", bound=Hashable)

BRANCHES = {"erank/target": style.TARGET, "erank/online": style.ONLINE}
ALIGNMENT = {
    "alignment/online_target": style.look(
        "plain mean (99.99 % of the eigenvalues' sum)", style.BLACK, marker="o"
    ),
    "alignment/online_target_paper_m": style.look(
        "plain mean (at most 512 eigenvectors; BYOL: 128)", style.GREY, style.DOTS, "D"
    ),
    "alignment/online_target_weighted": style.look(
        "weighted by eigenvalues", style.GREY, style.DASHES, "^"
    ),
}
ACCURACIES = [column.name for column in reversed(charts()[ACCURACY])]
MEASURES = [column.name for column in columns.measures()]
# The columns of the figures in this module; `other_charts` draws all other columns with a chart.
_DRAWN = ["train/loss", *BRANCHES, *ALIGNMENT, *ACCURACIES, *MEASURES]
OTHERS = [name for name, column in COLUMNS.items() if column.chart and name not in _DRAWN]
DIAGNOSTICS = "runs with diagnostics (diagnostics.every_n_epochs above 0)"


@partial(
    Plot,
    title="Effective rank of both branches",
    caption="The number of directions that the outputs use: 1 if all outputs lie on one line, k if "
    "they use all k dimensions equally. According to the paper, a higher rank of the target "
    "prevents collapse. Both ranks usually fall in the first epochs. A large mean lowers them; "
    "collapse is judged on the rank around the mean.",
    needs=DIAGNOSTICS,
    paper="Figures 1 and 7",
    columns=tuple(BRANCHES),
)
def effective_rank(groups: Groups, looks: style.Looks) -> Figure:
    return _branch_panels(groups, BRANCHES)


@style.styled
def rank_picture(metrics: Mapping[str, np.ndarray], title: str = "") -> Figure:
    """Draw both branches' effective rank over the epochs of one run's table."""
    figure, (axes,) = style.figure(1)
    for column, look in BRANCHES.items():
        style.draw_line(axes, metrics["epoch"], metrics[column], look)
    epoch_axes(axes, COLUMNS["erank/target"].chart)
    style.start_at_zero(axes)
    style.panel_title(axes, title)
    return style.finish(figure)


@partial(
    Plot,
    title="Alignment of the branches' eigenspaces",
    caption="The mean cosine between an eigenvector u of the target's correlation matrix C_z and "
    "C_p u, where C_p is the online branch's matrix. It is 1 if both have the same eigenvectors; "
    "the branches then differ only by a spectral filter. The plain mean counts tiny directions as "
    "much as large ones. The weighted mean uses the eigenvalues as weights. Both use the "
    "leading eigenvectors with 99.99 % of the eigenvalues' sum; the paper uses 512 (BYOL: 128).",
    needs=DIAGNOSTICS,
    paper="Figure 3",
    columns=tuple(ALIGNMENT),
)
def alignment(groups: Groups, looks: style.Looks) -> Figure:
    return _branch_panels(groups, ALIGNMENT)


def _branch_panels(groups: Groups, columns: Mapping[str, style.Look]) -> Figure:
    """Draw one panel per setting, with these columns of the same chart."""
    first = next(iter(columns))
    figure, panels = style.figure(len(groups))
    for axes, group in zip(panels, groups):
        for column, look in columns.items():
            draw_column(axes, group, column, look)
        epoch_axes(axes, COLUMNS[first].chart)
        style.panel_title(axes, group.label)
    share_limits(panels, map(rank_scale, groups))
    for axes in panels:
        style.start_at_zero(axes)
    return figure


@partial(
    Plot,
    title="Training loss",
    caption="The loss alone does not reveal a collapse; look at the rank as well. A rank gap keeps "
    "the loss above its minimum. Methods whose losses have the same minimum share a panel.",
    needs="runs with a finished epoch",
    paper="Figure 9",
    columns=("train/loss",),
)
def losses(groups: Groups, looks: style.Looks) -> Figure:
    by_minimum = blocks(groups, _loss_scale)
    figure, panels = style.figure(len(by_minimum))
    for axes, (minimum, members) in zip(panels, by_minimum):
        for group in members:
            draw_column(axes, group, "train/loss", looks[group.label])
        epoch_axes(axes, COLUMNS["train/loss"].chart)
        words = list(dict.fromkeys(group.method for group in members))
        if not isinstance(minimum, str):
            words.append(f"minimum {minimum:g}")
        style.panel_title(axes, ", ".join(words))
    share_limits(panels, [minimum for minimum, _ in by_minimum])
    return figure


def _loss_scale(group: Group) -> str | float:
    """Return the minimum of a method's loss, or the method's name if the minimum is unknown."""
    minimum = group.first.description.loss_minimum
    return group.method if minimum is None else minimum


@partial(
    Plot,
    title="Accuracy",
    caption="kNN classifies an image by the training images with the nearest features. The online "
    "classifier is trained along with the backbone and lags behind it.",
    needs="runs with labelled validation images and the kNN or the online accuracy enabled",
    columns=ACCURACIES,
)
def accuracies(groups: Groups, looks: style.Looks) -> Figure:
    return _column_panels(groups, looks, ACCURACIES)


@partial(
    Plot,
    title="Other measures of rank",
    caption="All are computed from the target's outputs, except the Epps–Pulley statistic, which "
    "is computed from the projections, and the measures of patch tokens. The table of measures "
    "explains each one.",
    needs=DIAGNOSTICS,
    columns=MEASURES,
)
def measures(groups: Groups, looks: style.Looks) -> Figure:
    return _column_panels(groups, looks, MEASURES)


@partial(
    Plot,
    title="All other charts",
    caption="Measured values that are in no figure above. The label of a panel's vertical axis is "
    "the value, its title what the value describes.",
    needs=DIAGNOSTICS,
    columns=OTHERS,
)
def other_charts(groups: Groups, looks: style.Looks) -> Figure:
    return _column_panels(groups, looks, OTHERS)


def _column_panels(groups: Groups, looks: style.Looks, names: Sequence[str]) -> Figure:
    """Draw one panel per column, with all settings that have measured it."""
    by_column = []
    for name in names:
        measured = [group for group in groups if group.last(name)]
        for _, members in blocks(measured, lambda group: None):
            by_column.append((name, members))
    figure, panels = style.figure(len(by_column))
    for axes, (name, members) in zip(panels, by_column):
        for group in members:
            draw_column(axes, group, name, looks[group.label])
        epoch_axes(axes, COLUMNS[name].label)
        style.panel_title(axes, COLUMNS[name].chart)
    share_limits(panels, [name for name, _ in by_column])
    return figure


def draw_column(axes: Axes, group: Group, column: str, look: style.Look) -> None:
    """Draw a setting's column over epochs, with thin lines for runs that are not in the mean."""
    draw_curve(axes, curve_of(group.counted, column), look)
    # "_" keeps a line out of the legend.
    thin = style.look("_behind", look["color"], marker=".", linewidth=0.8, markersize=3)
    for run in group.uncounted:
        draw_curve(axes, curve_of([run], column), thin)


def epoch_axes(axes: Axes, label: str) -> None:
    """Label axes over epochs; call it after drawing."""
    style.y_label(axes, label)
    style.integer_axis(axes, "epoch")
    if axes.lines:
        first, last = axes.dataLim.intervalx
        style.end_ticks_at(axes, first, last)
        if first == 0:
            axes.set_xlabel("epoch (0: before training)")
    style.mark_empty(axes, f"{label}\nwas not measured")


def draw_curve(axes: Axes, curve: Curve, look: style.Look) -> None:
    """Draw the mean over seeds, with a band from minimum to maximum."""
    style.draw_line(axes, curve.x, curve.mean, look)
    axes.fill_between(curve.x, curve.low, curve.high, color=look["color"], alpha=0.16, linewidth=0)


def share_limits(panels: Sequence[Axes], scales: Iterable[Hashable]) -> None:
    """Give non-empty panels of the same scale the same vertical limits."""
    by_scale = defaultdict(list)
    for axes, scale in zip(panels, scales):
        if axes.lines:
            by_scale[scale].append(axes)
    for same in by_scale.values():
        limits = np.array([axes.get_ylim() for axes in same])
        for axes in same:
            axes.set_ylim(limits.min(), limits.max())


def blocks(groups: Groups, kind: Callable[[Group], Kind]) -> list[tuple[Kind, list[Group]]]:
    """Return kind and settings of each panel; a kind with many settings gets several panels."""
    by_kind: dict[Kind, list[Group]] = defaultdict(list)
    for group in groups:
        by_kind[kind(group)].append(group)
    panels = []
    for value, members in by_kind.items():
        for start in range(0, len(members), style.SERIES):
            panels.append((value, members[start : start + style.SERIES]))
    return panels


def rank_scale(group: Group) -> tuple[bool, int]:
    """Return softmax and dimension of the outputs; ranks are comparable if these are equal."""
    _, arrays = group.spectrum()
    dimensions = arrays["lam_target"].shape[1] if arrays else 0
    return group.first.description.softmax, dimensions


def axis_label(name: str) -> str:
    """Return the label of an axis with one column."""
    column = COLUMNS[name]
    if column.chart == ACCURACY:
        return f"{column.label} (%)"
    return column.chart
