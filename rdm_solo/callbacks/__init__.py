"""Lightning callbacks that measure and report while a run trains.

Names are imported on first use, so that a command loads only the callbacks that it needs.
"""

import math
from typing import TYPE_CHECKING, Any

from rdm_solo import import_on_first_use

if TYPE_CHECKING:
    from rdm_solo.callbacks.checkpointing import Checkpoints
    from rdm_solo.callbacks.diagnostics import CollapseWatch, Diagnostics
    from rdm_solo.callbacks.epoch_reports import Progress, SkippedImages
    from rdm_solo.callbacks.knn import WeightedKNN
    from rdm_solo.callbacks.logged import Health, StepScalars
    from rdm_solo.callbacks.measurement import EpochTable
    from rdm_solo.callbacks.pictures import Pictures, RankFigure

__all__ = [
    "Checkpoints",
    "CollapseWatch",
    "Diagnostics",
    "EpochTable",
    "Health",
    "Pictures",
    "Progress",
    "RankFigure",
    "SkippedImages",
    "StepScalars",
    "WeightedKNN",
    "is_last_epoch",
]

__getattr__ = import_on_first_use(
    __all__,
    "rdm_solo.callbacks.diagnostics",
    "rdm_solo.callbacks.knn",
    "rdm_solo.callbacks.checkpointing",
    "rdm_solo.callbacks.epoch_reports",
    "rdm_solo.callbacks.logged",
    "rdm_solo.callbacks.measurement",
    "rdm_solo.callbacks.pictures",
)


def is_last_epoch(trainer: Any) -> bool:
    """Return whether this epoch reaches the last epoch or step, or the run is being stopped."""
    epochs = trainer.current_epoch + 1
    steps = trainer.global_step  # after this epoch, if the number of its batches is known
    batches = trainer.num_training_batches
    if math.isfinite(batches):  # infinite: data without a length
        steps_per_epoch = math.ceil(batches / trainer.accumulate_grad_batches)
        steps = max(steps, epochs * steps_per_epoch)
    has_all_steps = 0 < trainer.max_steps <= steps
    has_all_epochs = 0 < trainer.max_epochs <= epochs
    return bool(trainer.should_stop or has_all_steps or has_all_epochs)


def is_due(trainer: Any, every_n_epochs: int) -> bool:
    """Return whether epoch 1, 1 + n, 1 + 2n, ... or the last one runs; never if n is 0."""
    if not every_n_epochs:
        return False
    return trainer.current_epoch % every_n_epochs == 0 or is_last_epoch(trainer)
