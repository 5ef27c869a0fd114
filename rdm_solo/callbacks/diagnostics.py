"""Spectra of both branches, measured while a run trains."""

import logging
import math
from pathlib import Path
from typing import Any

import torch

from rdm_solo.callbacks.branches import Observer, Outputs, observer
from rdm_solo.callbacks.last_epoch import ends
from rdm_solo.filters.batch import has_float64
from rdm_solo.lightning import pl
from rdm_solo.runs import spectra_files
from rdm_solo.spectra.branch_spectra import BranchSpectra
from rdm_solo.spectra.epoch_summary import Spectra
from rdm_solo.spectra.matrices import low_rank_spectrum
from rdm_solo.spectra.moments import around_means, spread
from rdm_solo.spectra.ranks import effective_rank
from rdm_solo.spectra.step_correlation import StepCorrelation

log = logging.getLogger("rdm_solo")


class Diagnostics(pl.Callback):
    """Accumulate both branches' spectra over an epoch's training outputs.

    Forward hooks record the outputs (:mod:`rdm_solo.callbacks.branches`); no training step changes,
    so this works with any of solo-learn's methods, and with any module whose step returns its two
    outputs. Of a long epoch, evenly spaced steps are taken until about ``max_rows`` view rows are
    in.

    ``latest`` holds the spectra of the epoch that just ended, on every process, for the callbacks
    that run after this one; None where it was not measured. Logits before a softmax come from
    the recorded inputs of the last layer, with its weight at the end of the epoch.
    """

    def __init__(
        self,
        folder: Path,
        every_n_epochs: int = 1,
        max_rows: int = 10_000,
        max_dim: int = 4096,
        sample: int = 1024,
        resume: Path | None = None,
    ) -> None:
        self.folder, self.resume = folder, resume
        self.every_n_epochs, self.max_rows = every_n_epochs, max_rows
        self.max_dim, self.sample = max_dim, sample
        self.metric: BranchSpectra | None = None
        self.hidden: StepCorrelation | None = None
        self.latest: Spectra | None = None
        self.observer: Observer | None = None
        self._rows = 0  # of a recorded step, over all processes; 0: none recorded yet
        self._steps = 0  # recorded in this epoch
        self._warned: set[str] = set()

    @staticmethod
    def of(trainer: Any) -> "Diagnostics | None":
        """The trainer's, for callbacks that run after it."""
        return next((c for c in trainer.callbacks if isinstance(c, Diagnostics)), None)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self.metric = self.hidden = self.latest = None  # an earlier fit may have been cut short
        if self.every_n_epochs:
            self.observer = observer(pl_module)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        if self.observer is not None:
            self.observer.detach()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.on_fit_end(trainer, pl_module)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.is_global_zero:
            spectra_files.begin(self.folder, trainer.current_epoch, self.resume)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.latest, self._rows, self._steps = None, 0, 0

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.observer is None:
            return
        due = trainer.current_epoch % self.every_n_epochs == 0
        if (due or ends(trainer)) and self._wanted(trainer.num_training_batches, batch_idx):
            self.observer.record_next_step()

    def _wanted(self, batches: float, batch_idx: int) -> bool:
        if not self._rows:
            return True
        if math.isinf(batches):  # nobody knows where such an epoch ends: its first steps
            return self._rows * self._steps < self.max_rows
        return batch_idx % max(1, math.ceil(self._rows * batches / self.max_rows)) == 0

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.observer is None or not self.observer.recording:
            return
        recorded = self.observer.take(getattr(pl_module, "num_large_crops", None), outputs)
        if recorded is None:
            return
        self._rows = self._rows or len(recorded.online) * trainer.world_size
        self._steps += 1
        self._add(recorded)

    def _add(self, outputs: Outputs) -> None:
        home = outputs.online.device if has_float64(outputs.online.device) else torch.device("cpu")
        outputs = Outputs(*(x if x is None else x.to(home) for x in outputs))
        if self.metric is None:
            self.metric = BranchSpectra(
                outputs.online.shape[1],
                self.observer.normalize,
                self.observer.m,
                self.max_dim,
                self.sample,
                steps=outputs.hidden is None,
            ).to(home)
            if outputs.hidden is not None:
                self.hidden = StepCorrelation(outputs.hidden.shape[1]).to(home)
        self.metric.update(outputs.online, outputs.target, outputs.positive, outputs.projection)
        if self.hidden is not None:
            self.hidden.update(outputs.hidden)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self.metric is None or not self.metric.update_called:
            return
        counts = torch.stack([self.metric.count, self.metric.broken])
        seen, broken = trainer.strategy.reduce(counts, reduce_op="sum").tolist()
        if broken and trainer.is_global_zero:
            self._warn(
                f"{broken} of {seen + broken} outputs of epoch {trainer.current_epoch + 1} are NaN "
                "or infinite; spectra leave them out. A lower learning rate may help.",
                "broken",
            )
        self.latest = self._spectra(self.metric) if seen else None
        for metric in filter(None, (self.metric, self.hidden)):
            metric.reset()
        if self.latest is None:
            return
        bar = {name: self.latest.scalars[name] for name in ("erank/online", "erank/target")}
        rest = {name: value for name, value in self.latest.scalars.items() if name not in bar}
        pl_module.log_dict(bar, prog_bar=True, sync_dist=True)
        pl_module.log_dict(rest, sync_dist=True)
        if trainer.is_global_zero:
            self._warn_of_few_rows(self.latest)
            arrays = {name: array.numpy() for name, array in self.latest.arrays().items()}
            spectra_files.write(self.folder, trainer.current_epoch + 1, arrays)

    def _warn_of_few_rows(self, spectra: Spectra) -> None:
        if spectra.sampled:
            advice = f"k is above diagnostics.max_dim={self.max_dim}; diagnostics.sample raises N."
        else:
            advice = "A larger diagnostics.max_rows takes more of an epoch that has more."
        if spectra.basis.warning:
            self._warn(f"{spectra.basis.warning} {advice}", "rows")

    def _spectra(self, metric: BranchSpectra) -> Spectra:
        spectra = metric.compute()
        if self.hidden is None:
            return spectra
        # A softmax's scale depends on its temperature: collapse shows before it. Directions are
        # those of the last layer's input, since a layer of few prototypes need not use them all.
        C, C_means = self.hidden.compute()
        weight = self.observer.weight().to(C)
        spectra.lam_logits = low_rank_spectrum(C, weight).cpu()
        moment, off = ((weight @ x * weight).sum() for x in (C, C_means))
        spectra.scalars |= {
            "erank/logits": float(effective_rank(spectra.lam_logits)),
            "erank/centred": float(effective_rank(around_means(C, C_means))),
            "feature/spread": float(spread(moment, off)),
        }
        spectra.dimensions = len(C)
        return spectra

    def _warn(self, what: str, once: str) -> None:
        if once not in self._warned:
            self._warned.add(once)
            log.warning(f"warning: {what}")
