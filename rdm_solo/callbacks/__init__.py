"""Lightning callbacks that measure and report while a run trains.

Names are imported on first use, so that ``Watch`` can use the hooks and rules without Lightning.
"""

import importlib
from typing import Any

_MODULES = {
    "Checkpoints": "checkpoints",
    "CollapseWatch": "diagnostics",
    "Diagnostics": "diagnostics",
    "EpochTable": "epoch_reports",
    "Pictures": "pictures",
    "Progress": "epoch_reports",
    "RankFigure": "pictures",
    "SkippedImages": "epoch_reports",
    "Speeds": "speeds",
    "WeightedKNN": "knn",
}
__all__ = [*_MODULES, "is_last_epoch"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"rdm_solo.callbacks.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def is_last_epoch(trainer: Any) -> bool:
    """Return whether no epoch follows: all are done, or the run is being stopped."""
    steps = 0 < trainer.max_steps <= trainer.global_step
    done = 0 < trainer.max_epochs <= trainer.current_epoch + 1
    return bool(trainer.should_stop or steps or done)
