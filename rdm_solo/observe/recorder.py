"""Record an epoch: from the outputs of evenly spaced steps to spectra and a row of scalars."""

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from rdm_solo.collapse.rules import MeasuredEpoch
from rdm_solo.ground.devices import has_float64
from rdm_solo.ground.distributed import gather_objects, rank, sum_over_processes
from rdm_solo.observe.branches import MissingBranch, Observer
from rdm_solo.observe.outputs import Outputs

if TYPE_CHECKING:  # torchmetrics takes seconds to load
    import numpy

    from rdm_solo.spectra.branch_spectra import BranchSpectra
    from rdm_solo.spectra.epoch_summary import Spectra
    from rdm_solo.spectra.features import FeatureSpectra
    from rdm_solo.spectra.logits import StepCorrelation

log = logging.getLogger("rdm_solo")

# Fewer rows vary little around their own mean, whatever the network does.
MIN_ROWS = 8
JUDGED = ("feature/spread", "erank/centred")  # around the mean of each step


@dataclass(frozen=True)
class Limits:
    """How much of an epoch is measured.

    About ``max_rows`` outputs are used, from evenly spaced steps. If outputs have more than
    ``max_dim`` dimensions, spectra are computed from ``sample`` rows. Features of more than
    ``max_features_dim`` dimensions are not measured.
    """

    max_rows: int = 10_000
    max_dim: int = 4096
    sample: int = 1024
    max_features_dim: int = 2048


@dataclass
class EpochRow:
    """An epoch's scalars under the names of the columns in ``metrics.csv``, and its spectra."""

    epoch: int  # counted from 1; 0 is the untrained network
    scalars: dict[str, float]
    spectra: "Spectra | None" = None  # None if the epoch was not measured

    def arrays(self) -> dict[str, "numpy.ndarray"]:
        """Return the spectra under their names in ``spectra/``; none if nothing was measured."""
        tensors = self.spectra.arrays() if self.spectra else {}
        return {name: tensor.numpy() for name, tensor in tensors.items()}

    def measured(self, classes: int | None = None) -> MeasuredEpoch:
        """Return the values that the rules of collapse read."""
        dimensions = 0 if self.spectra is None else self.spectra.dimensions
        return MeasuredEpoch.read(self.scalars, self.epoch, dimensions, classes)


class Recorder:
    """Record the outputs of an observer's module over an epoch and compute their spectra.

    Call ``before_step`` and ``after_step`` around each training step, and ``end_epoch`` at the end.
    ``views`` is the number of views of each image, and ``options`` the prefix of option names in
    warnings. ``keep_latest`` keeps the last recorded outputs.
    """

    def __init__(
        self,
        observer: Observer,
        limits: Limits,
        views: int | None = None,
        options: str = "diagnostics.",
        keep_latest: bool = False,
    ) -> None:
        self.observer = observer
        self.limits = limits
        self.views = views
        self.options = options
        self.was_measured = False  # whether this process has recorded a step in any epoch
        self.device = torch.device("cpu")  # of the recorded outputs
        self.keep_latest = keep_latest
        self.latest: Outputs | None = None  # of the last recorded step, if they are kept
        self._metric: BranchSpectra | None = None
        self._hidden: StepCorrelation | None = None
        self._features: FeatureSpectra | None = None
        self._warned: set[str] = set()
        self.begin_epoch()

    def begin_epoch(self) -> None:
        self._rows = 0  # rows per recorded step over all processes; 0 before the first
        self.recorded_steps = 0  # of this epoch
        self._with_positives: bool | None = None  # whether this epoch's steps have positives
        self._left_out_steps = False  # whether max_rows left out a step of this epoch

    def before_step(self, step: int, steps: float) -> bool:
        """Record ``step`` (from 0) if it is one of the evenly spaced ones; return whether it is.

        ``steps`` is the number of steps in the epoch, or infinity if it is unknown.
        """
        if not self._rows:
            is_recorded = True
        elif step >= steps or math.isinf(steps):
            is_recorded = self._rows * self.recorded_steps < self.limits.max_rows
        else:
            interval = math.ceil(self._rows * steps / self.limits.max_rows)
            is_recorded = step % max(1, interval) == 0
        if is_recorded:
            self.observer.record_next_step()
        else:
            self._left_out_steps = True
        return is_recorded

    def after_step(self, step_output: Any = None) -> None:
        """Add the step's outputs if it was recorded; ``step_output`` is what the step returned."""
        if not self.observer.recording:
            return
        outputs = None
        try:
            outputs = self.observer.pop_outputs(self.views, step_output)
        except MissingBranch:
            if not self.was_measured:
                raise
        if outputs is not None and len(outputs.target) == 0:
            outputs = None  # a step without rows counts as one without outputs
        if outputs is not None:
            self.was_measured = True
            self.device = outputs.online.device
        outputs = self._synchronised(outputs)
        if outputs is not None:
            self.recorded_steps += 1
            if self.keep_latest:
                self.latest = outputs
            self._add(outputs)

    def _synchronised(self, outputs: Outputs | None) -> Outputs | None:
        """Return the outputs to add for this step, or None if all processes skip it.

        All processes must add the same steps, or one would hang, so all skip a step for which one
        lacks outputs. Either all steps of an epoch have positives or none.
        """
        description = None
        if outputs is not None:
            has_positives = outputs.positive is not None
            description = len(outputs.online), has_positives, outputs.features is not None
        descriptions = gather_objects(description)  # with several processes, this synchronises
        if outputs is None or None in descriptions:
            return None
        rows, positives, features = zip(*filter(None, descriptions))
        if not all(features):
            outputs = outputs._replace(features=None)
        if self._with_positives is None:
            self._with_positives = all(positives)
        elif self._with_positives and not all(positives):
            return None
        self._rows = self._rows or sum(rows)
        return outputs if self._with_positives else outputs._replace(positive=None)

    def _add(self, outputs: Outputs) -> None:
        from rdm_solo.spectra.branch_spectra import BranchSpectra

        device = outputs.online.device
        if not has_float64(device):
            device = torch.device("cpu")
        if outputs.features is not None:
            self._add_features([view.to(device) for view in outputs.features])
        outputs = outputs.to(device)
        if self._metric is None:
            self._metric = BranchSpectra(
                outputs.online.shape[1],
                self.observer.normalize,
                self.observer.m,
                self.limits.max_dim,
                self.limits.sample,
                steps=outputs.hidden is None,
            ).to(device)
        self._metric.update(outputs.online, outputs.target, outputs.positive, outputs.projection)
        if outputs.hidden is not None:
            if self._hidden is None:
                from rdm_solo.spectra.logits import StepCorrelation

                self._hidden = StepCorrelation(outputs.hidden.shape[1]).to(device)
            self._hidden.update(outputs.hidden)

    def _add_features(self, views: list[torch.Tensor]) -> None:
        dim = views[0].shape[1]
        if dim > self.limits.max_features_dim:
            return
        if self._features is None:
            from rdm_solo.spectra.features import FeatureSpectra

            self._features = FeatureSpectra(dim).to(views[0].device)
        self._features.update(views)

    def end_epoch(
        self, epoch: int, loss: float | None = None, classes: int | None = None
    ) -> EpochRow:
        """Return the epoch's row on every process; it is empty if no finite output was recorded.

        ``loss`` is compared with ln K if the method has a softmax over K outputs. ``classes`` is K
        if the observer does not know of the softmax.
        """
        row = EpochRow(epoch, {})
        if self._metric is None or not self._metric.update_called:
            return row
        counts = torch.stack([self._metric.count, self._metric.broken])
        finite, broken = sum_over_processes(counts).tolist()
        if broken:
            self._warn(
                f"{broken} of {finite + broken} outputs of epoch {epoch} are NaN "
                "or infinite; they are excluded from the spectra. A lower learning rate may help.",
                "broken",
            )
        if finite:
            row.spectra = self._spectra(self._metric)
            if self._features is not None and self._features.update_called:
                row.spectra.scalars |= self._features.compute()
                row.spectra.features_dimensions = self._features.total.numel()
            row.scalars = dict(row.spectra.scalars)
            if row.spectra.lam_logits is not None:
                classes = self._metric.dim
            if loss is not None and classes is not None and classes > 1:
                row.scalars["train/loss_share"] = loss / math.log(classes)
            if self._rows < MIN_ROWS:
                for name in JUDGED:
                    row.scalars.pop(name, None)
                self._warn(
                    f"a step has only {self._rows} rows, so collapse of the outputs is not judged. "
                    "Use larger batches, or tokens='rows' if the outputs are tokens.",
                    "few rows",
                )
            if row.spectra.warning:
                self._warn(f"{row.spectra.warning} {self._rows_advice(row.spectra)}", "rows")
        for metric in (self._metric, self._hidden, self._features):
            if metric is not None:
                metric.reset()
        return row

    def _rows_advice(self, spectra: "Spectra") -> str:
        """Return how to measure more rows, which depends on what limits them."""
        if spectra.sampled and spectra.rows == self.limits.sample:
            return f"Raise {self.options}sample to use more rows."
        if self._left_out_steps:
            return f"Raise {self.options}max_rows to use more rows."
        return "All outputs of the epoch are used: use more images or fewer dimensions."

    def _spectra(self, metric: "BranchSpectra") -> "Spectra":
        """Return the epoch's spectra; for methods with a softmax, also the spectrum of the logits.

        The spread of softmax outputs depends on the temperature, so collapse is judged on the
        logits. Their spectrum is computed from the last layer's inputs and its weight at the end of
        the epoch. The centred rank is that of the inputs: the logits of few prototypes cannot show
        all directions.
        """
        spectra = metric.compute()
        if self._hidden is None:
            return spectra
        from rdm_solo.spectra import effective_rank, logits, moments, rows

        # torchmetrics squeezes matrices with a single element.
        C, C_means = map(torch.atleast_2d, self._hidden.compute())
        weight = self.observer.weight().to(C)
        spectra.lam_logits = logits.low_rank_spectrum(C, weight).cpu()
        second_moment = (weight @ C * weight).sum()
        means_moment = (weight @ C_means * weight).sum()
        spectra.scalars |= {
            "erank/logits": float(effective_rank(spectra.lam_logits)),
            "erank/centred": float(effective_rank(moments.centred_eigenvalues(C, C_means))),
            "feature/spread": float(rows.spread(second_moment, means_moment)),
        }
        spectra.dimensions = len(C)
        return spectra

    def _warn(self, text: str, key: str) -> None:
        """Log a warning on rank 0, once for each key."""
        if key not in self._warned and rank() == 0:
            self._warned.add(key)
            log.warning(f"warning: {text}")
