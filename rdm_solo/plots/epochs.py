"""Figures over training: effective ranks, alignment, losses, accuracies, other measures."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rdm_solo.plots import style
from rdm_solo.plots.entry import Groups, Plot, has_any
from rdm_solo.plots.ranks import BRANCHES
from rdm_solo.runs import columns
from rdm_solo.runs.columns import ACCURACY, COLUMNS, charts
from rdm_solo.runs.groups import Curve, Group, curve_of, uncounted_runs

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
# Title, curves (setting, column, look) and a key; panels with equal keys share their limits.
Panel = tuple[str, Sequence[tuple[Group, str, style.Look]], Hashable]
ACCURACIES = {
    "val/knn_acc1": style.look("kNN", style.BLACK, marker="o"),
    "val/acc1": style.look("online classifier", style.GREY, style.DASHES, "s"),
}
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
    measured=has_any(*BRANCHES),
)
def effective_rank(groups: Groups, looks: style.Looks) -> Figure:
    return _branch_panels(groups, BRANCHES)


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
    measured=has_any(*ALIGNMENT),
)
def alignment(groups: Groups, looks: style.Looks) -> Figure:
    return _branch_panels(groups, ALIGNMENT)


def _branch_panels(groups: Groups, lines: Mapping[str, style.Look]) -> Figure:
    """Draw one panel per setting, with these columns."""
    panels = [
        (group.label, [(group, *line) for line in lines.items()], rank_scale(group))
        for group in groups
    ]
    figure = draw_panels(panels)
    for axes in figure.axes:
        style.start_at_zero(axes)
    return figure


@partial(
    Plot,
    title="Training loss",
    caption="The loss alone does not reveal a collapse; look at the rank as well. A rank gap keeps "
    "the loss above its minimum. Methods whose losses have the same minimum share a panel.",
    needs="runs with a finished epoch",
    paper="Figure 9",
    measured=has_any("train/loss"),
)
def losses(groups: Groups, looks: style.Looks) -> Figure:
    def scale(group: Group) -> str | float:
        minimum = group.first.description.loss_minimum
        return group.first.method if minimum is None else minimum

    panels: list[Panel] = []
    for minimum, members in blocks(groups, scale):
        words = list(dict.fromkeys(group.method for group in members))
        words += [] if isinstance(minimum, str) else [f"minimum {minimum:g}"]
        curves = [(group, "train/loss", looks[group.label]) for group in members]
        panels.append((", ".join(words), curves, minimum))
    return draw_panels(panels)


@partial(
    Plot,
    title="Accuracy",
    caption="kNN classifies an image by the training images with the nearest features. The online "
    "classifier is trained along with the backbone and lags behind it.",
    needs="runs with labelled validation images and the kNN or the online accuracy enabled",
    measured=has_any(*(column.name for column in charts()[ACCURACY])),
)
def accuracies(groups: Groups, looks: style.Looks) -> Figure:
    if len(groups) > 1:
        return _column_panels(groups, looks, charts()[ACCURACY][::-1])
    figure = _branch_panels(groups, ACCURACIES)
    figure.axes[0].set_ylabel(ACCURACY)
    return figure


@partial(
    Plot,
    title="Other measures of rank",
    caption="All are computed from the target's outputs, except the Epps–Pulley statistic, which "
    "is computed from the projections. The table of measures explains each one.",
    needs=DIAGNOSTICS,
    measured=has_any(*(column.name for column in columns.measures())),
)
def measures(groups: Groups, looks: style.Looks) -> Figure:
    return _column_panels(groups, looks, columns.measures())


def _column_panels(groups: Groups, looks: style.Looks, names: Sequence[columns.Column]) -> Figure:
    """Draw one panel per column, with all settings."""
    panels: list[Panel] = []
    for column in names:
        measured = [group for group in groups if group.last(column.name)]
        for _, members in blocks(measured, lambda group: None):
            curves = [(group, column.name, looks[group.label]) for group in members]
            panels.append(("", curves, column))
    return draw_panels(panels)


def draw_panels(panels: Sequence[Panel]) -> Figure:
    """Draw one figure with these panels, each over epochs."""
    figure, grid = style.figure(len(panels))
    for (title, curves, _), axes in zip(panels, grid):
        over_epochs(axes, curves)
        style.panel_title(axes, title)
    share_limits(grid, [kind for _, _, kind in panels])
    return figure


def over_epochs(axes: Axes, curves: Sequence[tuple[Group, str, style.Look]]) -> None:
    """Draw columns over epochs, with thin lines for runs that are not in the mean."""
    for group, column, look in curves:
        draw_curve(axes, group.over_epochs(column), look)
        for run in uncounted_runs(group):  # "_" keeps them out of the legend
            thin = style.look("_behind", look["color"], marker=".", linewidth=0.8, markersize=3)
            draw_curve(axes, curve_of([run], column), thin)
    axes.set_ylabel(axis_label(curves[0][1]))
    style.integer_axis(axes, "epoch")
    style.mark_empty(axes, f"{curves[0][1]}\nwas not measured")


def draw_curve(axes: Axes, curve: Curve, look: style.Look) -> None:
    """Draw the mean over seeds, with a band from minimum to maximum."""
    measured = np.isfinite(curve.x) & np.isfinite(curve.mean)
    x, mean, low, high = (v[measured] for v in (curve.x, curve.mean, curve.low, curve.high))
    style.draw_line(axes, x, mean, look)
    axes.fill_between(x, low, high, color=look["color"], alpha=0.16, linewidth=0)


def share_limits(panels: Sequence[Axes], kinds: Sequence[Hashable]) -> None:
    """Give non-empty panels of the same kind the same vertical limits."""
    for kind in set(kinds):
        same = [axes for axes, other in zip(panels, kinds) if other == kind and axes.lines]
        limits = [end for axes in same for end in axes.get_ylim()]
        for axes in same:
            axes.set_ylim(min(limits), max(limits))


def blocks(
    groups: Sequence[Group], kind: Callable[[Group], Hashable]
) -> Iterator[tuple[Any, list[Group]]]:
    """Yield kind and settings of each panel; a kind with many settings gets several panels."""
    kinds: dict[Hashable, list[Group]] = {}
    for group in groups:
        kinds.setdefault(kind(group), []).append(group)
    for name, members in kinds.items():
        for start in range(0, len(members), style.SERIES):
            yield name, members[start : start + style.SERIES]


def rank_scale(group: Group) -> tuple[bool, int]:
    """Return softmax and dimension of the outputs; ranks are comparable if these are equal."""
    lam = group.spectrum()[1].get("lam_target")
    return group.first.description.softmax, 0 if lam is None else lam.shape[1]


def axis_label(name: str) -> str:
    """Return a column's label for a vertical axis."""
    column = COLUMNS[name]
    if column.chart == ACCURACY:
        return f"{column.label} (%)"
    return column.label if column.meaning else column.chart
