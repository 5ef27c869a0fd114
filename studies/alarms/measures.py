"""How well measures without labels order the runs by linear accuracy."""

import math
from collections.abc import Callable, Sequence

from scipy.stats import kendalltau  # type: ignore[import-untyped, unused-ignore]

from studies import markdown
from studies.alarms.judging import collapsed
from studies.alarms.plan import PLAN
from studies.table import Row, series

LOSS, KNN, FEW = "loss", "kNN accuracy", "kNN accuracy with 50 labels"

# A measure and its column. "features" are the backbone's features in the training steps, "clean
# features" those of unaugmented images in eval() mode.
MEASURES = {
    "features: effective rank": "erank/features",
    "clean features: effective rank": "clean_erank",
    "features: effective rank around the mean": "erank/features_centred",
    "clean features: effective rank around the mean": "clean_erank/features_centred",
    "features: RankMe": "rankme/features",
    "clean features: RankMe": "clean_rankme",
    "features: stable rank": "stable_rank/features",
    "clean features: stable rank": "clean_stable_rank",
    "features: α-ReQ": "alpha_req/features",
    "clean features: α-ReQ": "clean_alpha_req",
    "features: variance share": "spread/features",
    "clean features: variance share": "clean_spread",
    "features: LiDAR": "lidar/features",
    "clean features: IdEst (intrinsic dimension)": "clean_idest",
    "clean features: area under the explained variance": "clean_explained",
    "outputs: effective rank of the target": "erank/target",
    "outputs: effective rank around the mean": "erank/centred",
    "outputs: RankMe of the target": "rankme/target",
    "outputs: stable rank of the target": "stable_rank/target",
    "outputs: α-ReQ of the target": "alpha_req/target",
    "outputs: LiDAR of the target": "lidar/target",
    LOSS: "train/loss",
    KNN: "val/knn_acc1",
    FEW: "knn_few",
}
# Turn a value into a score, where a higher value is not better; α-ReQ should be near 1.
DIRECTIONS: dict[str, Callable[[float], float]] = {
    "train/loss": lambda loss: -loss,
    "clean_explained": lambda area: -area,
    **{
        name: lambda alpha: -abs(alpha - 1)
        for name in ("alpha_req/features", "clean_alpha_req", "alpha_req/target")
    },
}


def score(name: str, row: Row) -> float:
    """Return a run's last value of a measure, larger for a better run; -inf if it has none."""
    column = MEASURES[name]
    last = next((x for x in reversed(series(row[column])) if not math.isnan(x)), math.nan)
    return -math.inf if math.isnan(last) else DIRECTIONS.get(column, lambda value: value)(last)


def tau(name: str, rows: Sequence[Row]) -> float:
    """Return Kendall's tau of a measure with linear accuracy, over the runs that have both."""
    pairs = [(score(name, row), float(row["linear_trained"])) for row in rows]
    pairs = [pair for pair in pairs if math.isfinite(pair[0]) and not math.isnan(pair[1])]
    return float(kendalltau(*zip(*pairs)).statistic) if len(pairs) > 1 else math.nan


def table(rows: Sequence[Row]) -> str:
    """Return Kendall's tau of each measure with linear accuracy, on each data set."""
    rows = [row for row in rows if not row["diverged"]]

    def cell(name: str, runs: Sequence[Row]) -> str:
        groups = [[row for row in runs if row["data"] == data] for data in PLAN["data"]]
        return ", ".join(f"{tau(name, group):.2f}" for group in groups)

    alive = [row for row in rows if not collapsed(row)]
    body = [[name, cell(name, rows), cell(name, alive)] for name in MEASURES]
    return markdown.table(["measure", "all runs", "without failed runs"], body)
