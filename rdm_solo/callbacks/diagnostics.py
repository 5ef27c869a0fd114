"""Measure both branches' spectra while a run trains, and warn about collapse."""

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rdm_solo.callbacks import is_last_epoch
from rdm_solo.collapse.alarm import Alarm, measured_epoch
from rdm_solo.collapse.rules import RULE, Bounds, MeasuredEpoch
from rdm_solo.ground.lightning import pl
from rdm_solo.observe.branches import Observer
from rdm_solo.observe.epoch_spectra import EpochSpectra
from rdm_solo.observe.parts import observer
from rdm_solo.observe.untrained import is_untrained, untrained_spectra

if TYPE_CHECKING:
    from rdm_solo.spectra import Spectra

log = logging.getLogger("rdm_solo")


class Diagnostics(pl.Callback):
    """Accumulate spectra of both branches and of the backbone over an epoch's training outputs.

    Forward hooks record the outputs and leave training steps unchanged, so this works with all of
    solo-learn's methods, and with any module whose training step returns both branches' outputs.

    ``latest`` has the last epoch's spectra on every process, for later callbacks, or None if that
    epoch was not measured. Before the first epoch it has the untrained network's spectra.
    """

    def __init__(
        self,
        folder: Path,
        every_n_epochs: int = 1,
        max_rows: int = 10_000,
        max_dim: int = 4096,
        sample: int = 1024,
        max_features_dim: int = 2048,
    ) -> None:
        self.folder = folder
        self.every_n_epochs = every_n_epochs
        self.spectra = EpochSpectra(max_rows, max_dim, sample, max_features_dim)
        self.observer: Observer | None = None
        self.latest: Spectra | None = None

    @staticmethod
    def find_in(trainer: Any) -> "Diagnostics | None":
        """Return the trainer's Diagnostics callback, if it has one."""
        return next((c for c in trainer.callbacks if isinstance(c, Diagnostics)), None)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self.spectra.clear()  # an earlier fit may have failed
        self.latest = None
        if self.every_n_epochs:
            self.observer = observer(pl_module)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        if self.observer is not None:
            self.observer.detach()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        from rdm_solo.runs import spectra_files  # loads code that reads run folders

        if trainer.is_global_zero:
            spectra_files.truncate(self.folder, trainer.current_epoch)
        if self.observer is not None and is_untrained(trainer):
            self.latest = untrained_spectra(trainer, pl_module, self.spectra)
            if self.latest is not None:
                trainer.callback_metrics.update(self.latest.scalars)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.spectra.begin_epoch()
        self.latest = None

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.observer is None:
            return
        is_measured = trainer.current_epoch % self.every_n_epochs == 0 or is_last_epoch(trainer)
        if is_measured and self.spectra.should_record(batch_idx, trainer.num_training_batches):
            self.observer.record_next_step()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.observer is not None and self.observer.recording:
            views = getattr(pl_module, "num_large_crops", None)
            self.spectra.add(self.observer.pop_outputs(views, outputs), self.observer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        from rdm_solo.runs import spectra_files

        if self.observer is None:
            return
        epoch = trainer.current_epoch + 1
        self.latest = latest = self.spectra.end_epoch(epoch, self.observer)
        if latest is None or self.spectra.metric is None:
            return
        k = self.spectra.metric.dim
        if latest.lam_logits is not None and k > 1 and "train/loss" in trainer.callback_metrics:
            loss = float(trainer.callback_metrics["train/loss"])
            latest.scalars["train/loss_share"] = loss / math.log(k)
        pl_module.log_dict(latest.scalars, sync_dist=True)
        if trainer.is_global_zero:
            arrays = {name: array.numpy() for name, array in latest.arrays().items()}
            spectra_files.write(self.folder, epoch, arrays)


class CollapseWatch(pl.Callback):
    """Report each kind of collapse once; ``stop`` stops training at the first warning.

    It reads the spectra of :class:`Diagnostics` and the logged accuracies, so it must follow the
    callbacks that measure them. ``options`` has :class:`~rdm_solo.collapse.rules.Bounds` and
    ``stop``: true, false, or ``"notes"``, which also stops at a note.
    ``advise(kind, epoch=...)`` returns the likeliest cause of a collapse and the remedy.
    """

    def __init__(
        self, advise: Callable[..., str], warmup_epochs: float, options: Mapping[str, Any]
    ) -> None:
        bounds = {name: value for name, value in options.items() if name != "stop"}
        self.stop = options["stop"]
        self.alarm = Alarm(Bounds(warmup=warmup_epochs, **bounds), advise, _option)
        self.stopped: str | None = None

    def state_dict(self) -> dict[str, Any]:
        epochs = [asdict(epoch) for epoch in self.alarm.epochs]
        return {"warnings": self.alarm.warnings, "measured": epochs}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.alarm.warnings = state_dict["warnings"]
        self.alarm.epochs = [MeasuredEpoch(**epoch) for epoch in state_dict["measured"]]

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if is_untrained(trainer):
            self._update(trainer, pl_module, 0)

    def _update(self, trainer: Any, pl_module: Any, epoch: int) -> list[str]:
        """Add an epoch, 0 for the untrained network, and return the kinds of collapse found."""
        diagnostics = Diagnostics.find_in(trainer)
        spectra = None if diagnostics is None else diagnostics.latest
        classes = getattr(pl_module, "num_classes", None)
        return self.alarm.update(measured_epoch(trainer.callback_metrics, spectra, epoch, classes))

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        epoch = trainer.current_epoch + 1
        new = self._update(trainer, pl_module, epoch)
        new = [kind for kind in new if self.stop == "notes" or not RULE[kind].note]
        if new and self.stop and not is_last_epoch(trainer):
            self.stopped = f"watch.stop: {new[0]} in epoch {epoch}"
            trainer.should_stop = True
            if trainer.is_global_zero:
                log.warning(f"training stopped by watch.stop ({new[0]})")


def _option(name: str, value: Any) -> str:
    """Return an option as written on the command line."""
    return f"watch.{name}=null" if value is None else f"watch.{name}={value:g}"
