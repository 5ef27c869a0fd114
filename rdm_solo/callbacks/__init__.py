"""What watches a run while it trains, each a callback of Lightning's Trainer."""

from rdm_solo.callbacks.collapse_watch import CollapseWatch
from rdm_solo.callbacks.diagnostics import Diagnostics
from rdm_solo.callbacks.epoch_table import EpochTable
from rdm_solo.callbacks.knn import WeightedKNN
from rdm_solo.callbacks.pictures import Pictures, RankFigure
from rdm_solo.callbacks.progress import Progress

__all__ = [
    "CollapseWatch",
    "Diagnostics",
    "EpochTable",
    "Pictures",
    "Progress",
    "RankFigure",
    "WeightedKNN",
]
