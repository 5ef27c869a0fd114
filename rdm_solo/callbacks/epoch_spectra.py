"""Both branches' spectra of an epoch, from the outputs of its recorded steps."""

import logging
import math
from typing import TYPE_CHECKING

import torch

from rdm_solo.callbacks.branches import Observer, Outputs
from rdm_solo.devices import has_float64
from rdm_solo.distributed import gather_objects, rank, sum_over_processes

if TYPE_CHECKING:  # torchmetrics takes seconds to load
    from rdm_solo.spectra.branch_spectra import BranchSpectra
    from rdm_solo.spectra.epoch_summary import Spectra
    from rdm_solo.spectra.logits import StepCorrelation

log = logging.getLogger("rdm_solo")


class EpochSpectra:
    """Accumulates the spectra of what an observer records.

    A long epoch is sampled in evenly spaced steps. ``options`` prefixes option names in warnings.
    """

    def __init__(
        self, max_rows: int, max_dim: int, sample: int, options: str = "diagnostics."
    ) -> None:
        self.max_rows, self.max_dim, self.sample = max_rows, max_dim, sample
        self.options = options
        self.metric: BranchSpectra | None = None
        self.hidden: StepCorrelation | None = None
        self._rows = 0  # of a recorded step, over all processes; 0: none recorded yet
        self._steps = 0  # recorded in this epoch
        self._positives: bool | None = None  # whether this epoch's steps have any
        self._warned: set[str] = set()

    def begin_epoch(self) -> None:
        self._rows = self._steps = 0
        self._positives = None

    def should_measure(self, step: int, steps: float) -> bool:
        """Return whether to record a step, counted from 0, of an epoch of about ``steps``."""
        if not self._rows:
            return True
        if step >= steps or math.isinf(steps):  # the end of the epoch is not known
            return self._rows * self._steps < self.max_rows
        return step % max(1, math.ceil(self._rows * steps / self.max_rows)) == 0

    def add(self, outputs: Outputs | None, observer: Observer) -> None:
        """Add a step's outputs: on all processes, or on none where one of them has None."""
        from rdm_solo.spectra.branch_spectra import BranchSpectra

        outputs = self._agreed(outputs)
        if outputs is None:
            return
        self._steps += 1
        home = outputs.online.device if has_float64(outputs.online.device) else torch.device("cpu")
        outputs = Outputs(*(x if x is None else x.to(home) for x in outputs))
        if self.metric is None:
            self.metric = BranchSpectra(
                outputs.online.shape[1],
                observer.normalize,
                observer.m,
                self.max_dim,
                self.sample,
                steps=outputs.hidden is None,
            ).to(home)
            if outputs.hidden is not None:
                from rdm_solo.spectra.logits import StepCorrelation

                self.hidden = StepCorrelation(outputs.hidden.shape[1]).to(home)
        self.metric.update(outputs.online, outputs.target, outputs.positive, outputs.projection)
        if self.hidden is not None:
            self.hidden.update(outputs.hidden)

    def _agreed(self, outputs: Outputs | None) -> Outputs | None:
        """Return a step's outputs as every process adds them; None where they leave the step out.

        Processes must add up in the same steps, or one waits for another that never comes. So one
        process that has no outputs, or no positives, decides for all. An epoch's steps have
        positives, all of them, or none has.
        """
        mine = None if outputs is None else (len(outputs.online), outputs.positive is not None)
        steps = gather_objects(mine)  # with several processes, this waits for the device
        seen = [step for step in steps if step is not None]
        if outputs is None or len(seen) < len(steps):
            return None
        positives = all(with_positives for _, with_positives in seen)
        if self._positives is None:
            self._positives = positives
        elif self._positives and not positives:
            return None
        self._rows = self._rows or sum(rows for rows, _ in seen)
        return outputs if self._positives else outputs._replace(positive=None)

    def end_epoch(self, epoch: int, observer: Observer) -> "Spectra | None":
        """Return the epoch's spectra on every process; None where nothing finite was recorded."""
        if self.metric is None or not self.metric.update_called:
            return None
        counts = torch.stack([self.metric.count, self.metric.broken])
        seen, broken = sum_over_processes(counts).tolist()
        if broken:
            self._warn(
                f"{broken} of {seen + broken} outputs of epoch {epoch} are NaN "
                "or infinite; spectra leave them out. A lower learning rate may help.",
                "broken",
            )
        spectra = self._spectra(self.metric, observer) if seen else None
        for metric in filter(None, (self.metric, self.hidden)):
            metric.reset()
        if spectra is not None and spectra.warning:
            option = "sample" if spectra.sampled else "max_rows"
            self._warn(f"{spectra.warning} {self.options}{option} raises N.", "rows")
        return spectra

    def _spectra(self, metric: "BranchSpectra", observer: Observer) -> "Spectra":
        """Return the epoch's spectra, with those before a softmax where there is one.

        A softmax's scale depends on its temperature, so collapse shows before it: in the logits,
        which are made here from the last layer's inputs and its weight at the end of the epoch, and
        in the directions of these inputs, since a layer of few prototypes need not use them all.
        """
        spectra = metric.compute()
        if self.hidden is None:
            return spectra
        from rdm_solo.spectra import effective_rank, logits, moments, rows

        C, C_means = self.hidden.compute()
        weight = observer.weight().to(C)
        spectra.lam_logits = logits.low_rank_spectrum(C, weight).cpu()
        moment, off = ((weight @ x * weight).sum() for x in (C, C_means))
        spectra.scalars |= {
            "erank/logits": float(effective_rank(spectra.lam_logits)),
            "erank/centred": float(effective_rank(moments.centred_eigenvalues(C, C_means))),
            "feature/spread": float(rows.spread(moment, off)),
        }
        spectra.dimensions = len(C)
        return spectra

    def _warn(self, text: str, once: str) -> None:
        if once not in self._warned and rank() == 0:
            self._warned.add(once)
            log.warning(f"warning: {text}")
