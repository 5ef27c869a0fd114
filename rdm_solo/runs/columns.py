"""The scalars of each epoch: the columns of metrics.csv, under the same names in every logger.

To add a scalar, add an entry here and compute its value: a measure of the branches in
``rdm_solo/spectra/epoch_summary.py``, of the features in ``features.py`` there, any other in the
callback that logs it. ``metrics.csv`` and the loggers have every column. A ``chart`` adds it to the
figures of the report, to the dashboard and to the table at the end of a run. A ``meaning`` adds it
to the report's table and figure of measures, and ``compared`` to the tables of ``rdm_solo.Sweep``.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from rdm_solo.ground.errors import UserError, suggest

ACCURACY = "accuracy (%)"  # chart of the linear, kNN and online accuracies


@dataclass(frozen=True)
class Column:
    """A scalar: its name, its label, and where it is shown."""

    name: str  # in metrics.csv and in every logger
    label: str  # in table heads, legends and sentences
    # Title of its chart in the report and the dashboard; empty for no chart.
    chart: str = ""
    meaning: str = ""  # how to read it; if set, the report lists it under other measures of rank
    digits: int = 2  # decimals in tables
    better: str = ""  # "higher" or "lower" if one of them is; a sweeper optimises in that direction
    compared: bool = False  # whether tables that compare runs include its last value


# The result of rdm-solo linear: one value per run, not one per epoch.
LINEAR = Column("linear/top1", "linear", ACCURACY, digits=1, better="higher", compared=True)

_RANK, _ALIGNMENT = "effective rank", "alignment of eigenspaces"
_PROJECTION, _CENTRED = "effective rank before any filter", "effective rank around the mean"
_MONOTONICITY = "monotonicity of the filter (1: low-pass)"
_FEATURES = "rank of the backbone's features"
_OTHER_RANKS = "other measures of rank (target)"
_POWER_LAW = "power law of the covariance's eigenvalues (target)"
_SPHERE = "positives' distance and uniformity (target)"

# Measures of the backbone's features in training steps. Each has a column for held-out images, too.
FEATURES = [
    Column("erank/features", "effective rank of features", _FEATURES, compared=True),
    Column("erank/features_centred", "effective rank of features around the mean", _FEATURES),
    Column("rankme/features", "RankMe of features", _FEATURES),
    Column("lidar/features", "LiDAR of features", _FEATURES),
    Column("stable_rank/features", "stable rank of features", _FEATURES),
    Column("spread/features", "features' variance / second moment", digits=3),
    Column("alpha_req/features", "alpha-ReQ features"),
    Column("alpha_req_r2/features", "R² of alpha-ReQ features"),
]


def held_out(name: str) -> str:
    """Return the name of the column that has a measure of features for held-out images.

    >>> held_out("erank/features_centred")
    'erank/held_out_centred'
    """
    return name.replace("/features", "/held_out")


def _feature_columns() -> Iterator[Column]:
    """Yield each measure of features, with held-out images next to training steps."""
    for column in FEATURES:
        yield column
        label = column.label.replace("features", "held-out features")
        yield replace(column, name=held_out(column.name), label=label, compared=False)


COLUMNS = {
    column.name: column
    for column in (
        Column("epoch", "epoch", digits=0),
        Column("erank/online", "effective rank, online", _RANK, compared=True),
        Column("erank/target", "effective rank, target", _RANK, compared=True),
        Column("erank/gap", "gap", "gap (target − online)", compared=True),
        Column("erank/projection", "effective rank, projection", _PROJECTION),
        # Collapse is judged by these two, around the mean of each step.
        Column("erank/centred", "effective rank around the mean", _CENTRED),
        Column("feature/spread", "spread (variance / second moment)", digits=3),
        *_feature_columns(),
        Column("erank/positive", "effective rank, C₊"),
        Column("erank/logits", "effective rank, logits"),  # only for methods with a softmax
        Column("rankme/online", "RankMe online"),
        Column(
            "rankme/target",
            "RankMe target",
            _OTHER_RANKS,
            meaning="Effective rank of the singular values; within one method, higher is better.",
        ),
        Column(
            "lidar/target",
            "LiDAR",
            _OTHER_RANKS,
            meaning="Rank of the differences between images, relative to those between views.",
        ),
        Column("stable_rank/online", "stable rank online"),
        Column(
            "stable_rank/target",
            "stable rank target",
            _OTHER_RANKS,
            meaning="Sum of the eigenvalues divided by the largest: small ones hardly count.",
        ),
        Column("participation_ratio/online", "participation ratio online"),
        Column(
            "participation_ratio/target",
            "participation ratio target",
            _OTHER_RANKS,
            meaning="Effective number of eigenvalues: 1 if one is nonzero, k if k are equal.",
        ),
        Column(
            "nesum/target",
            "NESum",
            _OTHER_RANKS,
            meaning="Stable rank around the mean, from the covariance's eigenvalues.",
        ),
        Column(
            "alpha_req/target",
            "alpha-ReQ",
            _POWER_LAW,
            meaning="Exponent of the covariance's power law; meaningful only if R² is near 1.",
        ),
        Column(
            "alpha_req_r2/target",
            "R² of alpha-ReQ",
            _POWER_LAW,
            meaning="How well the power law fits the covariance's eigenvalues: 1 is exact.",
        ),
        Column(
            "positive_distance/target",
            "positives' distance",
            _SPHERE,
            meaning="Mean squared distance between two views of an image: 0 if they agree.",
            digits=3,
        ),
        Column(
            "uniformity/target",
            "uniformity",
            _SPHERE,
            meaning="How evenly outputs cover the sphere: 0 if all are equal, lower if more even.",
            digits=3,
        ),
        Column(
            "epps_pulley/projection",
            "Epps–Pulley statistic",
            meaning="SIGReg's test: about 1 if projections are normal with variance 1.",
            digits=1,
        ),
        Column(
            "mean_share/target",
            "share of the mean",
            meaning="Share of the mean in the second moment: 1 if all outputs equal their mean.",
            digits=3,
        ),
        # Of a watch, for a model with patch tokens.
        Column(
            "erank/patches",
            "effective rank of patches",
            meaning="Directions in which an image's patches differ: 0 if they are all equal.",
        ),
        Column(
            "drift/patches",
            "drift of patches",
            meaning="Change of the similarities between an image's patches since the first epoch. "
            "If it rises while their rank falls, patch features become alike.",
            digits=3,
        ),
        Column("alignment/online_target", "alignment plain", _ALIGNMENT),
        Column("alignment/online_target_weighted", "alignment weighted", _ALIGNMENT),
        Column("alignment/online_target_paper_m", "alignment paper's m"),
        Column("alignment/online_target_weighted_paper_m", "alignment weighted, paper's m"),
        Column("alignment/target_positive", "alignment with C₊", _ALIGNMENT),
        Column("alignment/target_positive_weighted", "alignment with C₊, weighted"),
        Column("alignment/target_positive_paper_m", "alignment with C₊, paper's m"),
        Column("alignment/target_positive_weighted_paper_m", "alignment C₊, weighted, paper's m"),
        Column("filter/monotonicity", "monotonicity sorted", _MONOTONICITY),
        Column("filter/monotonicity_directional", "monotonicity directional", _MONOTONICITY),
        Column(
            "feature/variance",
            "projection's variance",
            chart="variance of the projection (0: collapse)",
            digits=3,
            compared=True,
        ),
        Column("rate/slope", "slope of log speed on log λ"),  # only with callbacks.speeds
        Column("train/loss", "loss", "training loss", digits=3, better="lower", compared=True),
        # Only for methods with a softmax.
        Column("train/loss_share", "loss / ln K", digits=4, better="lower"),
        Column("val/acc1", "online acc.", ACCURACY, digits=1, better="higher", compared=True),
        Column("val/knn_acc1", "kNN", ACCURACY, digits=1, better="higher", compared=True),
        Column("val/chance", "most frequent class", digits=1),  # its share of the kNN's images
        # Only in row 0, and only for images in memory: kNN on normalised pixels instead of
        # features. Training has taught the backbone little if val/knn_acc1 stays below it.
        Column("val/knn_pixels", "kNN, raw pixels", digits=1),
    )
}


def charts() -> dict[str, list[Column]]:
    """Return the columns of each chart, by chart title.

    >>> [column.name for column in charts()["effective rank"]]
    ['erank/online', 'erank/target']
    """
    charts: dict[str, list[Column]] = {}
    for column in COLUMNS.values():
        if column.chart:
            charts.setdefault(column.chart, []).append(column)
    return charts


def measures() -> list[Column]:
    """Return the measures of rank and collapse from other papers."""
    return [column for column in COLUMNS.values() if column.meaning]


def compared() -> list[Column]:
    """Return the columns of tables that compare runs, with :data:`LINEAR` at the end."""
    return [column for column in [*COLUMNS.values(), LINEAR] if column.compared]


def check_column(name: str, others: Iterable[str] = ()) -> str:
    """Return ``name`` if it is a column or one of ``others``; raise UserError if not.

    >>> check_column("val/knn_acc")
    Traceback (most recent call last):
    rdm_solo.ground.errors.UserError: there is no column 'val/knn_acc'; did you mean 'val/knn_acc1'?
    """
    names = [*COLUMNS, *others]
    if name not in names:
        hint = suggest(name, names) or f"; there are {', '.join(dict.fromkeys(names))}."
        raise UserError(f"there is no column {name!r}{hint}")
    return name
