"""Watch a Lightning module in the Trainer of ``lightning`` or ``pytorch_lightning``."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rdm_solo.ground.lightning import callback_classes
from rdm_solo.observe.branches import Observer
from rdm_solo.observe.parts import observer
from rdm_solo.watch.loop import USER_SCALARS, Watch


class WatchCallback(*callback_classes()):  # type: ignore[misc]
    """Watch the module that the Trainer fits; the options are those of :class:`Watch`.

    Scalars are logged through the module to the Trainer's loggers. ``stop=True`` stops the run at
    the first collapse or mistake in the loop, even if it is only a note. A run that resumes from a
    checkpoint also resumes its folder; in a new folder, rows start at the Trainer's epoch. Logged
    values of val/acc1 and val/knn_acc1, and of train/loss if training_step returns no loss, are
    added to ``metrics.csv``.
    """

    def __init__(self, folder: str | Path, *, stop: bool = False, **options: Any) -> None:
        self.path = folder
        self.stop = stop
        self.options = options
        self.watch: _LightningWatch | None = None
        self._validated = False

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.watch = None

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *batch: Any) -> None:
        if trainer.fast_dev_run:
            return
        if self.watch is None:
            # Not earlier: a module's on_train_start may add parts, as solo-learn's SwAV does, and
            # on_train_epoch_start does not run if training resumes within an epoch.
            self.watch = self._make_watch(trainer, pl_module)
        steps = trainer.num_training_batches
        if math.isfinite(steps):  # otherwise the data have no length
            self.watch.steps_per_epoch = int(steps)

    def _make_watch(self, trainer: Any, pl_module: Any) -> "_LightningWatch":
        options = dict(self.options)
        options.setdefault("views", getattr(pl_module, "num_large_crops", None))
        if trainer.max_epochs and trainer.max_epochs > 0:
            options.setdefault("epochs", trainer.max_epochs)
        if trainer.current_epoch:  # resumed from a checkpoint
            options["resume"] = trainer.current_epoch
        watch = _LightningWatch(self.path, pl_module, **options)
        watch.epoch = max(watch.epoch, trainer.current_epoch + 1)  # the folder may lack epochs
        return watch

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *batch: Any) -> None:
        if self.watch is None:
            return
        loss = outputs
        if isinstance(outputs, Mapping):
            loss = outputs.get("loss")
        if loss is not None and pl_module.automatic_optimization:
            loss = loss * trainer.accumulate_grad_batches  # Lightning has divided by it
        self.watch.step(loss, outputs)
        self._stop_trainer(trainer, self.watch)

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._validated = True

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        watch = self.watch
        if watch is None:
            return
        scalars = self._logged_scalars(trainer, watch)
        row = watch.end_epoch(scalars)
        for name, value in row.items():
            if name not in USER_SCALARS:
                pl_module.log(name, value, sync_dist=True)
        self._stop_trainer(trainer, watch)

    def _stop_trainer(self, trainer: Any, watch: Watch) -> None:
        if self.stop and watch.stop_reason and not trainer.should_stop:
            trainer.should_stop = True
            watch.record_stop()

    def _logged_scalars(self, trainer: Any, watch: Watch) -> dict[str, float]:
        """Return the accuracies and the loss that the module logged in this epoch."""
        scalars = {}
        for name in USER_SCALARS:
            # callback_metrics also contains values from the validation of earlier epochs.
            is_stale = name.startswith("val/") and not self._validated
            # A logged loss may be the last step's, not the epoch's mean.
            is_known = name == "train/loss" and watch.losses.count > 0
            value = trainer.callback_metrics.get(name)
            if value is not None and not is_stale and not is_known:
                scalars[name] = float(value)
        self._validated = False
        return scalars

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        if self.watch is not None:
            self.watch.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if self.watch is not None:
            self.watch.close(exception)


class _LightningWatch(Watch):
    """A watch that also supports outputs from training_step and solo-learn's softmax methods."""

    def _observer(self, online: str | None, target: str | None) -> Observer:
        if online is not None or target is not None:
            return super()._observer(online, target)
        return observer(self.module)
