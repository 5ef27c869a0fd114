"""Names of the columns of metrics.csv."""

from __future__ import annotations

__all__ = ["COLUMNS"]

COLUMNS = [
    "epoch",
    "erank/online",
    "erank/target",
    "erank/gap",
    "erank/projection",
    "erank/positive",
    "rankme/online",
    "rankme/target",
    "alignment/online_target",
    "alignment/online_target_weighted",
    "alignment/online_target_paper_m",
    "alignment/online_target_weighted_paper_m",
    "alignment/target_positive",
    "alignment/target_positive_weighted",
    "alignment/target_positive_paper_m",
    "alignment/target_positive_weighted_paper_m",
    "filter/monotonicity",
    "filter/monotonicity_directional",
    "feature/variance",
    "train/loss",
    "val/acc1",
    "val/knn_acc1",
]


# A column of methods with a softmax alone.
LOGITS = "erank/logits"
