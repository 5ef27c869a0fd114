"""How well measures without labels order the runs by linear accuracy."""

import math
from collections.abc import Sequence

from scipy.stats import kendalltau  # type: ignore[import-untyped, unused-ignore]

from studies import markdown
from studies.alarms.judging import collapsed
from studies.alarms.plan import PLAN
from studies.table import Row, series

# A measure, and its columns from the training steps and from clean images in eval() mode.
FEATURES = {
    "effective rank": ("erank/features", "clean_erank"),
    "effective rank around the mean": ("erank/features_centred", "clean_erank/features_centred"),
    "RankMe": ("rankme/features", "clean_rankme"),
    "stable rank": ("stable_rank/features", "clean_stable_rank"),
    "variance share": ("spread/features", "clean_spread"),
    "LiDAR": ("lidar/features", ""),
    "intrinsic dimension (spanning tree)": ("", "clean_idest"),
    "area under the explained variance": ("", "clean_explained"),
}
OTHERS = {
    "loss": "train/loss",
    "outputs: effective rank of the target": "erank/target",
    "outputs: effective rank around the mean": "erank/centred",
    "outputs: RankMe of the target": "rankme/target",
    "outputs: LiDAR of the target": "lidar/target",
    "kNN accuracy": "val/knn_acc1",
    "kNN accuracy with 50 labels": "knn_few",
}


def tables(rows: Sequence[Row]) -> str:
    """Return Kendall's tau of each measure's last value with linear accuracy, on each data set."""
    rows = [row for row in rows if not row["diverged"]]
    alive = [row for row in rows if not collapsed(row)]
    head = ["measure", "all runs", "without collapses"]
    names = [
        (f"features, {source}: {name}", column)
        for name, columns in FEATURES.items()
        for source, column in zip(("training steps", "clean"), columns)
        if column
    ]
    cells = [
        [name, _taus(rows, column), _taus(alive, column)]
        for name, column in [*names, *OTHERS.items()]
    ]
    return markdown.table(head, cells)


def _taus(rows: Sequence[Row], column: str) -> str:
    """Return tau on each data set, such as ``0.64, 0.62, 0.46``."""
    taus = []
    for data in PLAN["data"]:
        group = [row for row in rows if row["data"] == data]
        pairs = [(_last(row[column]), float(row["linear_trained"])) for row in group]
        taus.append(
            kendalltau(*zip(*(pair for pair in pairs if not math.isnan(pair[0])))).statistic
        )
    return ", ".join(f"{tau:.2f}" for tau in taus)


def _last(cell: str) -> float:
    """Return the last measured number of a cell; NaN if there is none."""
    return next((x for x in reversed(series(cell)) if not math.isnan(x)), math.nan)
