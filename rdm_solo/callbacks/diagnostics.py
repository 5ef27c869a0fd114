"""Measure both branches' spectra while a run trains, and warn about collapse."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rdm_solo.callbacks import is_due, is_last_epoch
from rdm_solo.callbacks.measurement import Measurement, epoch_row
from rdm_solo.callbacks.untrained import is_untrained, untrained_row
from rdm_solo.collapse.alarm import Alarm
from rdm_solo.collapse.rules import RULE, Bounds, MeasuredEpoch
from rdm_solo.ground.lightning import pl
from rdm_solo.observe.parts import observer
from rdm_solo.observe.recorder import Limits, Recorder

log = logging.getLogger("rdm_solo")


class Diagnostics(Measurement):
    """Accumulate spectra of both branches and of the backbone over an epoch's training outputs.

    The path of a number::

        forward pass of a training step -> hook of an Observer -> Outputs (rows by branch and view)
        Outputs of the recorded steps   -> BranchSpectra in a Recorder (moments, in float64)
        end of the epoch                -> EpochRow (eigenvalues, and scalars such as erank/online)
        EpochRow                        -> loggers, CollapseWatch, metrics.csv, spectra/*.npz

    Hooks leave training steps unchanged, so this works with all of solo-learn's methods, and with
    any module whose training step returns both branches' outputs. ``limits`` are the fields of
    :class:`~rdm_solo.observe.recorder.Limits`.

    ``latest`` has the last epoch's spectra on every process, for later callbacks, or None if that
    epoch was not measured. Before the first epoch it has the untrained network's spectra.
    """

    def __init__(self, folder: Path, every_n_epochs: int = 1, **limits: int) -> None:
        self.folder = folder
        self.every_n_epochs = every_n_epochs
        self.limits = Limits(**limits)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        super().on_fit_start(trainer, pl_module)
        views = getattr(pl_module, "num_large_crops", None)
        self.recorder = Recorder(observer(pl_module), self.limits, views)

    def on_fit_end(self, *args: Any) -> None:
        self.recorder.observer.detach()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        from rdm_solo.runs import spectra_files  # loads code that reads run folders

        if trainer.is_global_zero:
            spectra_files.truncate(self.folder, trainer.current_epoch)
        if self.every_n_epochs and is_untrained(trainer):
            row = untrained_row(trainer, pl_module, self.recorder)
            self.scalars = row.scalars
            self.latest = row.spectra

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        super().on_train_epoch_start(trainer, pl_module)
        self.recorder.begin_epoch()

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        if is_due(trainer, self.every_n_epochs):
            self.recorder.before_step(batch_idx, trainer.num_training_batches)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *args: Any) -> None:
        self.recorder.after_step(outputs)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        from rdm_solo.runs import spectra_files

        epoch = trainer.current_epoch + 1
        scalars = epoch_row(trainer, epoch).scalars
        row = self.recorder.end_epoch(epoch, loss=scalars.get("train/loss"))
        self.latest = row.spectra
        self.log_scalars(pl_module, row.scalars)
        if row.spectra is not None and trainer.is_global_zero:
            spectra_files.write(self.folder, epoch, row.arrays())


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
        options = dict(options)
        self.stop = options.pop("stop")
        bounds = Bounds(warmup=warmup_epochs, **options)
        self.alarm = Alarm(bounds, advise, _option)
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

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        epoch = trainer.current_epoch + 1
        kinds = self._update(trainer, pl_module, epoch)
        if self.stop != "notes":
            kinds = [kind for kind in kinds if not RULE[kind].note]
        if kinds and self.stop and not is_last_epoch(trainer):
            self.stopped = f"watch.stop: {kinds[0]} in epoch {epoch}"
            trainer.should_stop = True
            if trainer.is_global_zero:
                log.warning(f"training stopped by watch.stop ({kinds[0]})")

    def _update(self, trainer: Any, pl_module: Any, epoch: int) -> list[str]:
        """Add an epoch, 0 for the untrained network, and return the new kinds of collapse."""
        row = epoch_row(trainer, epoch)
        classes = getattr(pl_module, "num_classes", None)
        return self.alarm.update(row.measured(classes))


def _option(name: str, value: Any) -> str:
    """Return an option as written on the command line."""
    return f"watch.{name}=null" if value is None else f"watch.{name}={value:g}"
