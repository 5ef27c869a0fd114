"""A watch over a Lightning module, for the Trainer of ``lightning`` or ``pytorch_lightning``."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rdm_solo.callbacks import parts
from rdm_solo.callbacks.branches import ByParts, Observer, Outputs, observer
from rdm_solo.lightning import callback_classes
from rdm_solo.messages import UserError
from rdm_solo.watch.folder import WatchFolder
from rdm_solo.watch.loop import OWN, Watch


class WatchCallback(*callback_classes()):  # type: ignore[misc]
    """A :class:`Watch` over the module that the Trainer fits; takes the same options.

    Scalars go through the module's own log to the Trainer's loggers. ``stop`` ends the run at the
    first collapse. A run that continues from a checkpoint continues in the same folder; in another
    one its rows begin with the Trainer's epoch. What the module logs as val/acc1 or val/knn_acc1
    also goes into ``metrics.csv``, and so does train/loss where its training_step returns no loss.
    """

    def __init__(self, folder: str | Path, *, stop: bool = False, **options: Any) -> None:
        self.path, self.stop, self.options = folder, stop, options
        self.watch: _Trained | None = None
        self._validated = False

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.watch = None

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._validated = False
        self._begin_once(trainer, pl_module)

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        self._begin_once(trainer, pl_module)  # a checkpoint within an epoch begins no epoch

    def _begin_once(self, trainer: Any, pl_module: Any) -> None:
        if self.watch is None and not trainer.fast_dev_run:
            # Not before: on_train_start of a module may make parts, as solo-learn's SwAV does.
            self.watch = self._begin(trainer, pl_module)
        if self.watch is not None:
            steps = trainer.num_training_batches  # inf of data without a length
            known = math.isfinite(steps)
            self.watch.steps_per_epoch = (
                int(steps) if known else self.options.get("steps_per_epoch")
            )

    def _begin(self, trainer: Any, pl_module: Any) -> "_Trained":
        given = dict(self.options)
        if trainer.global_step:  # of a checkpoint, which may be of the first epoch
            given["resume"] = trainer.current_epoch
        if trainer.max_epochs and trainer.max_epochs > 0:
            given.setdefault("epochs", trainer.max_epochs)
        given.setdefault("views", getattr(pl_module, "num_large_crops", None))
        watch = _Trained(self.path, pl_module, **given)
        if trainer.current_epoch:  # the folder may be another or shorter
            watch.epoch = trainer.current_epoch + 1
        return watch

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.watch is not None:
            self.watch.returned = outputs
            loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
            if loss is not None and pl_module.automatic_optimization:
                loss = loss * trainer.accumulate_grad_batches  # by which Lightning has divided it
            self.watch.step(loss)

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._validated = True

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self.watch is None:
            return
        logged, warned = trainer.callback_metrics, len(self.watch.collapsed)
        # Lightning keeps what an earlier epoch's validation has logged.
        fresh = [name for name in OWN if self._validated or not name.startswith("val/")]
        if self.watch.has_loss:  # the mean over the epoch; what is logged may be the last step's
            fresh.remove("train/loss")
        own = {name: float(logged[name]) for name in fresh if name in logged}
        found = self.watch.end_epoch(own)
        rest = {name: value for name, value in found.items() if name not in OWN}
        if rest:
            pl_module.log_dict(rest, sync_dist=True)
        if self.stop and len(self.watch.collapsed) > warned and not trainer.should_stop:
            trainer.should_stop = True
            self.watch.note_stop(f"stop=True: {self.watch.collapsed[warned]}")

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        if self.watch is not None:
            self.watch.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if self.watch is not None:
            self.watch.close(exception)


class _Trained(Watch):
    """Also takes what a training step returns, and knows the methods with a softmax."""

    returned: Any = None

    def _folder(self, folder: Path, config: Mapping[str, Any], resume: bool | int) -> WatchFolder:
        # 0 is a checkpoint within the first epoch: the rows that the folder has are made anew.
        return WatchFolder(folder, config, resume)

    def _observer(self, online: str | None, target: str | None) -> Observer:
        return super()._observer(online, target) if online or target else observer(self.module)

    def _outputs(self) -> Outputs | None:
        returned, self.returned = self.returned, None
        by_hand = isinstance(returned, Mapping) and {"online", "target"} <= returned.keys()
        if isinstance(self.observer, ByParts) and not by_hand:
            return super()._outputs()
        if type(self.observer) is Observer and not by_hand:
            raise UserError(
                f"{parts.not_found(self.module)} Or let training_step return both beside 'loss', "
                "as 'online' and 'target'."
            )
        return self.observer.take(self.views, returned)
