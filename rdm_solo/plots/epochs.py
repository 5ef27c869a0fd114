"""Figures over training: effective ranks, alignment, losses, accuracies, other measures."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from matplotlib.figure import Figure

from rdm_solo.plots import style
from rdm_solo.plots.curves import Panel, blocks, draw_panels, outputs_of
from rdm_solo.plots.entry import Groups, Plot, has_any
from rdm_solo.plots.ranks import BRANCHES
from rdm_solo.runs import columns
from rdm_solo.runs.columns import ACCURACY, charts
from rdm_solo.runs.groups import Group

ALIGNMENT = {
    "alignment/online_target": style.look(
        "plain mean (99.99 % of the eigenvalues' sum)", style.BLACK, marker="o"
    ),
    "alignment/online_target_paper_m": style.look(
        "plain mean (512 eigenvectors; BYOL: 128)", style.ORANGE, style.DOTS, "D"
    ),
    "alignment/online_target_weighted": style.look(
        "weighted by eigenvalues", style.GREEN, style.DASHES, "^"
    ),
}
DIAGNOSTICS = "runs with diagnostics (diagnostics.every_n_epochs above 0)"


@partial(
    Plot,
    section="alive",
    title="Effective rank of both branches over training",
    caption="The effective rank counts the directions that the outputs use. It is the exponential "
    "of the entropy of the correlation matrix's normalised eigenvalues: 1 if all outputs lie on "
    "one line, k if they use all dimensions equally. A target above the online branch is a rank "
    "difference, which prevents collapse according to the paper. Ranks usually fall in the first "
    "epochs; Theorem 4 gives conditions under which they rise again. Both ranks are uncentred, so "
    "a large mean lowers them. Collapse is judged around the mean.",
    needs=DIAGNOSTICS,
    paper="Figures 1 and 7",
    measured=has_any(*BRANCHES),
)
def effective_rank(drawn: Groups, looks: style.Looks) -> Figure:
    return _of_both_branches(drawn, BRANCHES)


@partial(
    Plot,
    section="mechanism",
    title="Alignment of the branches' eigenspaces",
    caption="The mean cosine between an eigenvector u of the target's C_z and C_p u. It is 1 if "
    "both matrices have the same eigenvectors; the branches then differ only by a spectral "
    "filter. The plain mean gives directions with hardly any energy the same weight as the first. "
    "The weighted mean uses the eigenvalues as weights. The paper's formula takes the eigenvectors "
    "of 99.99 % of the eigenvalues' sum, its code a fixed number. The alignment with C₊ is the "
    "plain mean for C_z and C₊, which pairs the target's outputs of two views.",
    needs=DIAGNOSTICS,
    paper="Figure 3",
    measured=has_any(*ALIGNMENT),
)
def alignment(drawn: Groups, looks: style.Looks) -> Figure:
    return _of_both_branches(drawn, ALIGNMENT, top=1.03)


def _of_both_branches(
    drawn: Groups, lines: Mapping[str, style.Look], top: float | None = None
) -> Figure:
    """Draw a panel with these columns for each setting."""
    panels = [
        Panel(group.label, [(group, *line) for line in lines.items()], outputs_of(group))
        for group in drawn
    ]
    figure = draw_panels(panels)
    for axes in figure.axes:
        axes.set_ylim(0, top)
    return figure


@partial(
    Plot,
    section="alive",
    title="Training loss",
    caption="A rank difference between the branches keeps the loss above its minimum. Methods "
    "whose losses have the same minimum share a panel. The loss alone does not reveal a collapse; "
    "look at the rank as well.",
    needs="runs with a finished epoch",
    paper="Figure 9",
    measured=has_any("train/loss"),
)
def losses(drawn: Groups, looks: style.Looks) -> Figure:
    def scale(group: Group) -> tuple[str, Any]:
        least = group.first.described.loss_minimum
        return group.first.dataset, group.first.method if least is None else least

    several = len({group.first.dataset for group in drawn}) > 1
    panels = []
    for (dataset, least), members in blocks(drawn, scale):
        words = list(dict.fromkeys(group.method for group in members))
        words += [f"minimum {least:g}"] if isinstance(least, (int, float)) else []
        title = ", ".join(words + [dataset] * several)
        panels.append(_of_settings(title, members, looks, "train/loss", (dataset, least)))
    return draw_panels(panels, 3, (3.2, 2.6))


@partial(
    Plot,
    section="good",
    title="Accuracy over training",
    caption="kNN classifies by the nearest training images in the backbone's features. The online "
    "classifier is trained beside the features and lags behind them.",
    needs="runs on labelled validation images, with the kNN or the online accuracy switched on",
    measured=has_any(*(column.name for column in charts()[ACCURACY])),
)
def accuracies(drawn: Groups, looks: style.Looks) -> Figure:
    several = len({group.first.dataset for group in drawn}) > 1
    panels = []
    for column in reversed(charts()[ACCURACY]):
        having = [group for group in drawn if len(group.over_epochs(column.name).x)]
        for dataset, members in blocks(having, lambda group: group.first.dataset):
            title, kind = dataset if several else "", (dataset, column)
            panels.append(_of_settings(title, members, looks, column.name, kind))
    return draw_panels(panels, 3, (3.2, 2.6))


@partial(
    Plot,
    section="ranks",
    title="Other measures of rank over training",
    caption="The table below explains each measure. All are computed from the target's outputs, "
    "except the statistic of Epps and Pulley, which is computed from the projection.",
    needs=DIAGNOSTICS,
    measured=has_any(*(column.name for column in columns.measures())),
)
def measures(drawn: Groups, looks: style.Looks) -> Figure:
    panels = [
        _of_settings(column.words, members, looks, column.name, column)
        for column in columns.measures()
        if any(group.last(column.name) for group in drawn)
        for _, members in blocks(drawn, lambda group: None)
    ]
    figure = draw_panels(panels, 4, (2.7, 2.5))
    for axes in figure.axes:
        axes.set_ylabel("")  # the title says it
    return figure


def _of_settings(title: str, members: Groups, looks: style.Looks, column: str, kind: Any) -> Panel:
    return Panel(title, [(group, column, looks[group.label]) for group in members], kind)
