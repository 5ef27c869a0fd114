"""The scalars of each epoch: the columns of metrics.csv, under the same names in every logger.

A new scalar is an entry here and the place that computes it (the spectra's summary, or a callback
that logs it): the table, the loggers, the dashboard and the report follow.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from rdm_solo.messages import UserError, suggest

ACCURACY = "accuracy (%)"  # the chart of what the paper measures by linear probing


@dataclass(frozen=True)
class Column:
    """A scalar, what people read in place of its name, and which pages show it."""

    name: str  # in metrics.csv and in every logger
    words: str  # head in a table, key of a line, and subject of a sentence
    digits: int  # behind the point of a last value
    # Title and vertical axis of the chart over epochs that has it with others of its kind; without
    # one it is in the file alone.
    chart: str = ""
    compared: bool = False  # whether pages that compare runs have its last value


# Of each run that was evaluated with python -m rdm_solo.linear: it has one value, not one an epoch.
LINEAR = Column("linear/top1", "linear", 1, ACCURACY, compared=True)

_RANK, _ALIGNMENT = "effective rank", "alignment of eigenspaces"
_MONOTONICITY = "monotonicity of the filter (1: low-pass)"
_OTHER_RANKS = "other measures of rank (target)"
_POWER_LAW = "power law of the covariance's eigenvalues (target)"
_SPHERE = "positives' distance and uniformity (target)"

COLUMNS = {
    column.name: column
    for column in (
        Column("epoch", "epoch", 0),
        Column("erank/online", "erank online", 2, _RANK, compared=True),
        Column("erank/target", "erank target", 2, _RANK, compared=True),
        Column("erank/gap", "gap", 2, "gap (target − online)", compared=True),
        Column("erank/projection", "erank projection", 2, "effective rank before any filter"),
        # What collapse is judged by: the outputs' directions around their step's mean, and their
        # variance over the second moment.
        Column("erank/centred", "erank around the mean", 2, "effective rank before any filter"),
        Column("feature/spread", "variance / second moment", 3),
        Column("erank/positive", "erank positive", 2),
        Column("erank/logits", "erank logits", 2),  # of methods with a softmax
        Column("rankme/online", "RankMe online", 2),
        Column("rankme/target", "RankMe target", 2, _OTHER_RANKS),
        Column("lidar/target", "LiDAR", 2, _OTHER_RANKS),
        Column("stable_rank/online", "stable rank online", 2),
        Column("stable_rank/target", "stable rank target", 2, _OTHER_RANKS),
        Column("participation_ratio/online", "participation ratio online", 2),
        Column("participation_ratio/target", "participation ratio target", 2, _OTHER_RANKS),
        Column("nesum/target", "NESum", 2, _OTHER_RANKS),
        Column("alpha_req/target", "alpha-ReQ", 2, _POWER_LAW),
        Column("alpha_req_r2/target", "R² of alpha-ReQ", 2, _POWER_LAW),
        Column("positive_distance/target", "positives' distance", 3, _SPHERE),
        Column("uniformity/target", "uniformity", 3, _SPHERE),
        Column("epps_pulley/projection", "Epps–Pulley statistic", 1),  # SIGReg's
        Column("mean_share/target", "share of the mean", 3),
        Column("alignment/online_target", "alignment plain", 2, _ALIGNMENT),
        Column("alignment/online_target_weighted", "alignment weighted", 2, _ALIGNMENT),
        Column("alignment/online_target_paper_m", "alignment paper's m", 2),
        Column("alignment/online_target_weighted_paper_m", "alignment weighted, paper's m", 2),
        Column("alignment/target_positive", "alignment with C₊", 2, _ALIGNMENT),
        Column("alignment/target_positive_weighted", "alignment with C₊, weighted", 2),
        Column("alignment/target_positive_paper_m", "alignment with C₊, paper's m", 2),
        Column(
            "alignment/target_positive_weighted_paper_m",
            "alignment with C₊, weighted, paper's m",
            2,
        ),
        Column("filter/monotonicity", "monotonicity sorted", 2, _MONOTONICITY),
        Column("filter/monotonicity_directional", "monotonicity directional", 2, _MONOTONICITY),
        Column(  # of the projection's outputs, not of the backbone's features
            "feature/variance",
            "projection's variance",
            3,
            "variance of the projection (0: collapse)",
            compared=True,
        ),
        Column("train/loss", "loss", 3, "training loss", compared=True),
        Column("val/acc1", "online acc.", 1, ACCURACY, compared=True),
        Column("val/knn_acc1", "kNN", 1, ACCURACY, compared=True),
    )
}


def charts() -> dict[str, list[Column]]:
    """The columns of each chart, by its title.

    >>> [column.name for column in charts()["effective rank"]]
    ['erank/online', 'erank/target']
    """
    found: dict[str, list[Column]] = {}
    for column in COLUMNS.values():
        if column.chart:
            found.setdefault(column.chart, []).append(column)
    return found


def compared() -> list[Column]:
    """The scalars whose last values compare runs, with :data:`LINEAR` at the end."""
    return [column for column in [*COLUMNS.values(), LINEAR] if column.compared]


def check_column(name: str, others: Iterable[str] = ()) -> str:
    """The name, if it is one of a column here or of the others; ValueError if not.

    >>> check_column("val/knn_acc")
    Traceback (most recent call last):
    rdm_solo.messages.UserError: there is no column 'val/knn_acc'; did you mean 'val/knn_acc1'?
    """
    known = [*COLUMNS, *others]
    if name not in known:
        hint = suggest(name, known) or f"; there are {', '.join(dict.fromkeys(known))}."
        raise UserError(f"there is no column {name!r}{hint}")
    return name
