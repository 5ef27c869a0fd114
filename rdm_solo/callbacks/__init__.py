"""Lightning callbacks that measure and report while a run trains."""

from rdm_solo.callbacks.checkpoints import Checkpoints
from rdm_solo.callbacks.collapse_watch import CollapseWatch
from rdm_solo.callbacks.diagnostics import Diagnostics
from rdm_solo.callbacks.epoch_table import EpochTable
from rdm_solo.callbacks.knn import WeightedKNN
from rdm_solo.callbacks.pictures import Pictures, RankFigure
from rdm_solo.callbacks.progress import Progress
from rdm_solo.callbacks.skipped_images import SkippedImages

__all__ = [
    "Checkpoints",
    "CollapseWatch",
    "Diagnostics",
    "EpochTable",
    "Pictures",
    "Progress",
    "RankFigure",
    "SkippedImages",
    "WeightedKNN",
]
