"""Both branches' spectra of an epoch, computed from its recorded steps."""

import logging
import math
from typing import TYPE_CHECKING

import torch

from rdm_solo.ground.devices import has_float64
from rdm_solo.ground.distributed import gather_objects, rank, sum_over_processes
from rdm_solo.observe.branches import Observer, Outputs

if TYPE_CHECKING:  # torchmetrics takes seconds to load
    from rdm_solo.spectra.branch_spectra import BranchSpectra
    from rdm_solo.spectra.epoch_summary import Spectra
    from rdm_solo.spectra.features import FeatureSpectra
    from rdm_solo.spectra.logits import StepCorrelation

log = logging.getLogger("rdm_solo")


class EpochSpectra:
    """Accumulate spectra from an observer's outputs.

    In a long epoch, only evenly spaced steps are used. ``options`` is the prefix of option names in
    warnings. Features of more than ``max_features_dim`` dimensions are not measured.
    """

    def __init__(
        self,
        max_rows: int,
        max_dim: int,
        sample: int,
        max_features_dim: int = 0,
        options: str = "diagnostics.",
    ) -> None:
        self.max_rows, self.max_dim, self.sample = max_rows, max_dim, sample
        self.max_features_dim, self.options = max_features_dim, options
        self.clear()
        self._rows = 0  # rows per recorded step over all processes; 0 before the first
        self._steps = 0  # recorded in this epoch
        self._positives: bool | None = None  # whether this epoch's steps have positives
        self._warned: set[str] = set()

    def clear(self) -> None:
        self.metric: BranchSpectra | None = None
        self.hidden: StepCorrelation | None = None
        self.features: FeatureSpectra | None = None

    def begin_epoch(self) -> None:
        self._rows = self._steps = 0
        self._positives = None

    def should_record(self, step: int, steps: float) -> bool:
        """Return whether to record ``step`` (from 0) in an epoch of about ``steps`` steps."""
        if not self._rows:
            return True
        if step >= steps or math.isinf(steps):  # the epoch's length is unknown
            return self._rows * self._steps < self.max_rows
        return step % max(1, math.ceil(self._rows * steps / self.max_rows)) == 0

    def add(self, outputs: Outputs | None, observer: Observer) -> None:
        """Add a step's outputs, unless any process has none."""
        from rdm_solo.spectra.branch_spectra import BranchSpectra

        outputs = self._synchronised(outputs)
        if outputs is None:
            return
        self._steps += 1
        device = outputs.online.device
        device = device if has_float64(device) else torch.device("cpu")
        if outputs.features is not None:
            self._add_features([x.to(device) for x in outputs.features])
        outputs = outputs.to(device)
        if self.metric is None:
            self.metric = BranchSpectra(
                outputs.online.shape[1],
                observer.normalize,
                observer.m,
                self.max_dim,
                self.sample,
                steps=outputs.hidden is None,
            ).to(device)
            if outputs.hidden is not None:
                from rdm_solo.spectra.logits import StepCorrelation

                self.hidden = StepCorrelation(outputs.hidden.shape[1]).to(device)
        self.metric.update(outputs.online, outputs.target, outputs.positive, outputs.projection)
        if self.hidden is not None and outputs.hidden is not None:
            self.hidden.update(outputs.hidden)

    def _add_features(self, views: list[torch.Tensor]) -> None:
        dim = views[0].shape[1]
        if dim > self.max_features_dim:
            return
        if self.features is None:
            from rdm_solo.spectra.features import FeatureSpectra

            self.features = FeatureSpectra(dim).to(views[0].device)
        self.features.update(views)

    def _synchronised(self, outputs: Outputs | None) -> Outputs | None:
        """Return the outputs to add for this step, or None if all processes skip it.

        All processes must add the same steps, or one would hang, so all skip a step for which one
        lacks outputs. Either all steps of an epoch have positives or none.
        """
        local = None
        if outputs is not None:
            with_features = outputs.features is not None
            local = len(outputs.online), outputs.positive is not None, with_features
        gathered = gather_objects(local)  # with several processes, this synchronises
        steps = [step for step in gathered if step is not None]
        if outputs is None or len(steps) < len(gathered):
            return None
        positives = all(with_positives for _, with_positives, _ in steps)
        if not all(with_features for *_, with_features in steps):
            outputs = outputs._replace(features=None)
        if self._positives is None:
            self._positives = positives
        elif self._positives and not positives:
            return None
        self._rows = self._rows or sum(rows for rows, *_ in steps)
        return outputs if self._positives else outputs._replace(positive=None)

    def end_epoch(self, epoch: int, observer: Observer) -> "Spectra | None":
        """Return the epoch's spectra on every process; None if no finite output was recorded."""
        if self.metric is None or not self.metric.update_called:
            return None
        counts = torch.stack([self.metric.count, self.metric.broken])
        finite, broken = sum_over_processes(counts).tolist()
        if broken:
            self._warn(
                f"{broken} of {finite + broken} outputs of epoch {epoch} are NaN "
                "or infinite; they are excluded from the spectra. A lower learning rate may help.",
                "broken",
            )
        spectra = self._spectra(self.metric, observer) if finite else None
        if spectra is not None and self.features is not None and self.features.update_called:
            spectra.scalars |= self.features.compute()
        for metric in filter(None, (self.metric, self.hidden, self.features)):
            metric.reset()
        if spectra is not None and spectra.warning:
            option = "sample" if spectra.sampled else "max_rows"
            self._warn(f"{spectra.warning} Raise {self.options}{option} to use more rows.", "rows")
        return spectra

    def _spectra(self, metric: "BranchSpectra", observer: Observer) -> "Spectra":
        """Return the epoch's spectra; for methods with a softmax, also the spectrum of the logits.

        The softmax's scale depends on its temperature, so collapse is measured before it. The
        logits' spectrum is computed from the last layer's inputs and its weight at the epoch's end.
        The centred rank is computed from the inputs: few prototypes may not span all directions.
        """
        spectra = metric.compute()
        if self.hidden is None:
            return spectra
        from rdm_solo.spectra import effective_rank, logits, moments, rows

        # torchmetrics squeezes matrices with a single element.
        C, C_means = map(torch.atleast_2d, self.hidden.compute())
        weight = observer.weight()
        assert weight is not None, "only observers of a softmax's last layer record its input"
        weight = weight.to(C)
        spectra.lam_logits = logits.low_rank_spectrum(C, weight).cpu()
        moment, means_moment = ((weight @ x * weight).sum() for x in (C, C_means))
        spectra.scalars |= {
            "erank/logits": float(effective_rank(spectra.lam_logits)),
            "erank/centred": float(effective_rank(moments.centred_eigenvalues(C, C_means))),
            "feature/spread": float(rows.spread(moment, means_moment)),
        }
        spectra.dimensions = len(C)
        return spectra

    def _warn(self, text: str, key: str) -> None:
        if key not in self._warned and rank() == 0:
            self._warned.add(key)
            log.warning(f"warning: {text}")
