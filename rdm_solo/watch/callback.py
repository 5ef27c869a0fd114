"""Watch a Lightning module in the Trainer of ``lightning`` or ``pytorch_lightning``."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rdm_solo.ground.errors import UserError
from rdm_solo.ground.lightning import callback_classes
from rdm_solo.observe import parts
from rdm_solo.observe.branches import Observer, Outputs
from rdm_solo.observe.parts import ModuleObserver, observer
from rdm_solo.watch.loop import USER_SCALARS, Watch


class WatchCallback(*callback_classes()):  # type: ignore[misc]
    """Watch the module that the Trainer fits; the options are those of :class:`Watch`.

    Scalars are logged through the module to the Trainer's loggers. ``stop=True`` stops the run at
    the first collapse, even if it is only a note. A run that resumes from a checkpoint also resumes
    its folder; in a new folder, rows start at the Trainer's epoch. Logged values of val/acc1 and
    val/knn_acc1, and of train/loss if training_step returns no loss, are added to ``metrics.csv``.
    """

    def __init__(self, folder: str | Path, *, stop: bool = False, **options: Any) -> None:
        self.path, self.stop, self.options = folder, stop, options
        self.watch: _LightningWatch | None = None
        self._validated = False

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.watch = None

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.fast_dev_run:
            return
        if self.watch is None:
            # Not earlier: a module's on_train_start may add parts, as solo-learn's SwAV does, and
            # on_train_epoch_start does not run if training resumes within an epoch.
            self.watch = self._make_watch(trainer, pl_module)
        steps = trainer.num_training_batches  # inf for data without a length
        sized = math.isfinite(steps)
        self.watch.steps_per_epoch = int(steps) if sized else self.options.get("steps_per_epoch")

    def _make_watch(self, trainer: Any, pl_module: Any) -> "_LightningWatch":
        options = {"views": getattr(pl_module, "num_large_crops", None), **self.options}
        if trainer.max_epochs and trainer.max_epochs > 0:
            options.setdefault("epochs", trainer.max_epochs)
        if trainer.current_epoch:  # resumed from a checkpoint
            options["resume"] = trainer.current_epoch
        watch = _LightningWatch(self.path, pl_module, **options)
        watch.epoch = max(watch.epoch, trainer.current_epoch + 1)  # the folder may lack epochs
        return watch

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.watch is not None:
            self.watch.step_outputs = outputs
            loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
            if loss is not None and pl_module.automatic_optimization:
                loss = loss * trainer.accumulate_grad_batches  # Lightning has divided by it
            self.watch.step(loss)

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._validated = True

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self.watch is None:
            return
        metrics, earlier = trainer.callback_metrics, len(self.watch.collapsed)
        # callback_metrics also contains values from the validation of earlier epochs.
        fresh = [name for name in USER_SCALARS if self._validated or not name.startswith("val/")]
        self._validated = False
        if self.watch.loss_count:  # a logged loss may be the last step's, not the epoch's mean
            fresh.remove("train/loss")
        row = self.watch.end_epoch({key: float(metrics[key]) for key in fresh if key in metrics})
        measured = {name: value for name, value in row.items() if name not in USER_SCALARS}
        if measured:
            pl_module.log_dict(measured, sync_dist=True)
        if self.stop and len(self.watch.collapsed) > earlier and not trainer.should_stop:
            trainer.should_stop = True
            self.watch.folder.stopped = f"stop=True: {self.watch.collapsed[earlier]}"

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        if self.watch is not None:
            self.watch.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if self.watch is not None:
            self.watch.close(exception)


class _LightningWatch(Watch):
    """A watch that also supports outputs from training_step and solo-learn's softmax methods."""

    step_outputs: Any = None

    def _observer(self, online: str | None, target: str | None) -> Observer:
        return super()._observer(online, target) if online or target else observer(self.module)

    def _outputs(self) -> Outputs | None:
        outputs, self.step_outputs = self.step_outputs, None
        has_outputs = isinstance(outputs, Mapping) and {"online", "target"} <= outputs.keys()
        if isinstance(self.observer, ModuleObserver) and not has_outputs:
            return super()._outputs()
        if type(self.observer) is Observer and not has_outputs:
            raise UserError(
                f"{parts.not_found_message(self.module)} Or return both outputs from training_step "
                "as 'online' and 'target', in a dict with 'loss'."
            )
        return self.observer.pop_outputs(self.views, outputs)
