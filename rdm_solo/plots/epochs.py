"""Figures over training: effective ranks, alignment, losses, accuracies, other measures."""

from functools import partial
from typing import Any

from matplotlib.figure import Figure

from rdm_solo.plots import style
from rdm_solo.plots.curves import Panel, blocks, draw_panels, looks, outputs_of
from rdm_solo.plots.entry import Groups, Plot, has_any
from rdm_solo.runs.columns import ACCURACY, COLUMNS, charts
from rdm_solo.runs.groups import Group

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
    measured=has_any(*ERANK),
)
def effective_rank(drawn: Groups, everything: Groups) -> Figure:
    return _branches(drawn, ERANK)


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
def alignment(drawn: Groups, everything: Groups) -> Figure:
    return _branches(drawn, ALIGNMENT, top=1.03)


def _branches(drawn: Groups, columns: dict[str, Any], top: float | None = None) -> Figure:
    """Draw a panel with these columns for each setting."""
    panels = [
        Panel(group.label, [(group, *column) for column in columns.items()], outputs_of(group))
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
def losses(drawn: Groups, everything: Groups) -> Figure:
    def scale(group: Group) -> tuple[str, Any]:
        least = group.first.described.loss_minimum
        return group.first.dataset, group.first.method if least is None else least

    several = len({group.first.dataset for group in drawn}) > 1
    panels = []
    for (dataset, least), members in blocks(everything, drawn, scale):
        words = list(dict.fromkeys(group.method for group in members))
        words += [f"minimum {least:g}"] if isinstance(least, (int, float)) else []
        title = ", ".join(words + [dataset] * several)
        panels.append(_settings_panel(title, members, everything, "train/loss", (dataset, least)))
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
def accuracies(drawn: Groups, everything: Groups) -> Figure:
    several = len({group.first.dataset for group in drawn}) > 1
    panels = []
    for column in reversed(charts()[ACCURACY]):
        having = [group for group in drawn if len(group.over_epochs(column.name).x)]
        for dataset, members in blocks(everything, having, lambda group: group.first.dataset):
            title, kind = dataset if several else "", (dataset, column)
            panels.append(_settings_panel(title, members, everything, column.name, kind))
    return draw_panels(panels, 3, (3.2, 2.6))


# The field's other measures of rank, by their column, and how to read them.
MEASURES = {
    "rankme/target": "Effective rank of the singular values. A higher one was proposed as a sign "
    "of a better checkpoint of one method.",
    "lidar/target": "Rank of the differences between samples, relative to those between views of "
    "one sample.",
    "stable_rank/target": "Sum of the eigenvalues over the largest one: small directions hardly "
    "count.",
    "participation_ratio/target": "How many eigenvalues share the sum: 1 to the number of "
    "dimensions.",
    "nesum/target": "Sum of the covariance's eigenvalues over the largest one: the stable rank "
    "around the mean.",
    "alpha_req/target": "Exponent of the power law that the covariance's eigenvalues follow; "
    "meaningful only where its R² is near 1.",
    "alpha_req_r2/target": "How well a power law fits the covariance's eigenvalues: 1 is exact.",
    "uniformity/target": "How evenly outputs cover the sphere: 0 is one point, lower is more even. "
    "Computed from at most 4,096 outputs, drawn at random.",
    "positive_distance/target": "Mean squared distance of two views of one image: 0 where views "
    "agree.",
    "epps_pulley/projection": "SIGReg's test against a normal distribution: about 1 where the "
    "projections are normally distributed with variance 1.",
    "mean_share/target": "Share of the mean in the second moment: 1 where all outputs equal their "
    "mean.",
}


@partial(
    Plot,
    section="ranks",
    title="Other measures of rank over training",
    caption="The table below explains each measure. All are computed from the target's outputs, "
    "except the statistic of Epps and Pulley, which is computed from the projection.",
    needs=DIAGNOSTICS,
    measured=has_any(*MEASURES),
)
def measures(drawn: Groups, everything: Groups) -> Figure:
    panels = [
        _settings_panel(COLUMNS[name].words, members, everything, name, name)
        for name in MEASURES
        if any(group.last(name) for group in drawn)
        for _, members in blocks(everything, drawn, lambda group: None)
    ]
    figure = draw_panels(panels, 4, (2.7, 2.5))
    for axes in figure.axes:
        axes.set_ylabel("")  # the title says it
    return figure


def _settings_panel(
    title: str, members: Groups, everything: Groups, column: str, kind: Any
) -> Panel:
    look = looks(everything)
    return Panel(title, [(group, column, look[group.label]) for group in members], kind)
