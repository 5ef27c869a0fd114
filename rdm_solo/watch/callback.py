"""A watch over a Lightning module, for the Trainer of ``lightning`` or ``pytorch_lightning``."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rdm_solo.callbacks import parts
from rdm_solo.callbacks.branches import Observer, Outputs
from rdm_solo.callbacks.parts import ByParts, observer
from rdm_solo.lightning import callback_classes
from rdm_solo.messages import UserError
from rdm_solo.watch.loop import USER_SCALARS, Watch


class WatchCallback(*callback_classes()):  # type: ignore[misc]
    """A :class:`Watch` over the module that the Trainer fits; takes the same options.

    Scalars are logged through the module to the Trainer's loggers. ``stop`` stops the run at the
    first collapse. A run that resumes from a checkpoint resumes in the same folder; in another
    folder its rows start at the Trainer's epoch. What the module logs as val/acc1 or val/knn_acc1
    is also written to ``metrics.csv``, and so is train/loss if training_step returns no loss.
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
            # on_train_epoch_start is skipped after a checkpoint within an epoch.
            self.watch = self._begin(trainer, pl_module)
        steps = trainer.num_training_batches  # inf for data without a length
        is_known = math.isfinite(steps)
        self.watch.steps_per_epoch = int(steps) if is_known else self.options.get("steps_per_epoch")

    def _begin(self, trainer: Any, pl_module: Any) -> "_LightningWatch":
        options = {"views": getattr(pl_module, "num_large_crops", None), **self.options}
        if trainer.max_epochs and trainer.max_epochs > 0:
            options.setdefault("epochs", trainer.max_epochs)
        if trainer.current_epoch:  # from a checkpoint
            options["resume"] = trainer.current_epoch
        watch = _LightningWatch(self.path, pl_module, **options)
        watch.epoch = max(watch.epoch, trainer.current_epoch + 1)  # the folder may lack epochs
        return watch

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.watch is not None:
            self.watch.returned = outputs
            loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
            if loss is not None and pl_module.automatic_optimization:
                loss = loss * trainer.accumulate_grad_batches  # Lightning has divided it
            self.watch.step(loss)

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._validated = True

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self.watch is None:
            return
        logged, warned = trainer.callback_metrics, len(self.watch.collapsed)
        # Lightning keeps what an earlier epoch's validation logged.
        fresh = [name for name in USER_SCALARS if self._validated or not name.startswith("val/")]
        self._validated = False
        if self.watch.losses:  # the mean over the epoch; the logged one may be the last step's
            fresh.remove("train/loss")
        row = self.watch.end_epoch({name: float(logged[name]) for name in fresh if name in logged})
        measured = {name: value for name, value in row.items() if name not in USER_SCALARS}
        if measured:
            pl_module.log_dict(measured, sync_dist=True)
        if self.stop and len(self.watch.collapsed) > warned and not trainer.should_stop:
            trainer.should_stop = True
            self.watch.folder.stopped = f"stop=True: {self.watch.collapsed[warned]}"

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        if self.watch is not None:
            self.watch.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if self.watch is not None:
            self.watch.close(exception)


class _LightningWatch(Watch):
    """Use outputs that a training step returns, and solo-learn's methods with a softmax."""

    returned: Any = None

    def _observer(self, online: str | None, target: str | None) -> Observer:
        return super()._observer(online, target) if online or target else observer(self.module)

    def _outputs(self) -> Outputs | None:
        returned, self.returned = self.returned, None
        has_outputs = isinstance(returned, Mapping) and {"online", "target"} <= returned.keys()
        if isinstance(self.observer, ByParts) and not has_outputs:
            return super()._outputs()
        if type(self.observer) is Observer and not has_outputs:
            raise UserError(
                f"{parts.not_found(self.module)} Or let training_step return both next to 'loss', "
                "as 'online' and 'target'."
            )
        return self.observer.take(self.views, returned)
