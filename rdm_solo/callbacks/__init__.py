"""Lightning callbacks that measure and report while a run trains.

Names are imported when they are first used: a watch over a plain loop uses this room's hooks and
rules without Lightning.
"""

import importlib
from typing import Any

_MODULES = {
    "Checkpoints": "checkpoints",
    "CollapseWatch": "collapse_watch",
    "Diagnostics": "diagnostics",
    "EpochTable": "epoch_table",
    "Pictures": "pictures",
    "Progress": "progress",
    "RankFigure": "pictures",
    "SkippedImages": "skipped_images",
    "WeightedKNN": "knn",
}
__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"rdm_solo.callbacks.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
