"""Spectra of both branches, measured while a run trains."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rdm_solo.callbacks.branches import Observer
from rdm_solo.callbacks.epoch_spectra import EpochSpectra
from rdm_solo.callbacks.last_epoch import ends
from rdm_solo.callbacks.parts import observer
from rdm_solo.lightning import pl

if TYPE_CHECKING:
    from rdm_solo.spectra import BranchSpectra, Spectra

BAR = ("erank/online", "erank/target")  # in a progress bar of Lightning's own


class Diagnostics(pl.Callback):
    """Accumulate both branches' spectra over an epoch's training outputs.

    Forward hooks record the outputs (:mod:`rdm_solo.callbacks.branches`) and no training step
    changes, so this works with all of solo-learn's methods, and with any module whose step returns
    its two outputs. :class:`~rdm_solo.callbacks.epoch_spectra.EpochSpectra` chooses the steps.

    ``latest`` holds the spectra of the epoch that just ended, on every process, for the callbacks
    that run after this one; None where it was not measured.
    """

    def __init__(
        self,
        folder: Path,
        every_n_epochs: int = 1,
        max_rows: int = 10_000,
        max_dim: int = 4096,
        sample: int = 1024,
    ) -> None:
        self.folder = folder
        self.every_n_epochs = every_n_epochs
        self.spectra = EpochSpectra(max_rows, max_dim, sample)
        self.observer: Observer | None = None
        self.latest: Spectra | None = None

    @property
    def metric(self) -> "BranchSpectra | None":
        return self.spectra.metric

    @staticmethod
    def of(trainer: Any) -> "Diagnostics | None":
        """Return the trainer's, for callbacks that run after it."""
        return next((c for c in trainer.callbacks if isinstance(c, Diagnostics)), None)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self.spectra.forget()
        self.latest = None
        if self.every_n_epochs:
            self.observer = observer(pl_module)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        if self.observer is not None:
            self.observer.detach()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.on_fit_end(trainer, pl_module)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        from rdm_solo.runs import spectra_files  # with all that reads a run's folder

        if trainer.is_global_zero:
            spectra_files.begin(self.folder, trainer.current_epoch)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.spectra.begin_epoch()
        self.latest = None

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        epoch = trainer.current_epoch
        if self.observer is None or epoch < self.observer.first_epoch:
            return
        due = epoch % self.every_n_epochs == 0 or ends(trainer)
        if due and self.spectra.wants(batch_idx, trainer.num_training_batches):
            self.observer.record_next_step()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.observer is not None and self.observer.recording:
            recorded = self.observer.take(getattr(pl_module, "num_large_crops", None), outputs)
            self.spectra.add(recorded, self.observer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        from rdm_solo.runs import spectra_files

        epoch = trainer.current_epoch + 1
        self.latest = latest = self.spectra.end_epoch(epoch, self.observer)
        if latest is None:
            return
        bar = {name: latest.scalars[name] for name in BAR}
        rest = {name: value for name, value in latest.scalars.items() if name not in bar}
        pl_module.log_dict(bar, prog_bar=True, sync_dist=True)
        pl_module.log_dict(rest, sync_dist=True)
        if trainer.is_global_zero:
            arrays = {name: array.numpy() for name, array in latest.arrays().items()}
            spectra_files.write(self.folder, epoch, arrays)
