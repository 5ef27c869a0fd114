"""A watch over a run's spectra that says once, in words, when and why they collapse."""

import logging
import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from rdm_solo.callbacks.diagnostics import Diagnostics
from rdm_solo.callbacks.last_epoch import ends
from rdm_solo.lightning import pl
from rdm_solo.spectra import collapse
from rdm_solo.spectra.collapse import Bounds, MeasuredEpoch

log = logging.getLogger("rdm_solo")

FORMAT = 3  # of the state in a checkpoint; readings of earlier versions are other numbers


class CollapseWatch(pl.Callback):
    """Warns once for each kind of collapse, and ends the run at the first if ``stop`` is set.

    It reads the spectra of :class:`~rdm_solo.callbacks.Diagnostics`, which are the same on all
    processes; the first one's word counts for all. ``advise(kind, epoch=...)`` gives the likeliest
    cause of a collapse and the remedy.
    """

    after = ("Diagnostics",)

    def __init__(
        self,
        advise: Callable[..., str],
        warmup_epochs: float,
        variance: float | None = Bounds.variance,
        erank: float | None = Bounds.erank,
        gap_epochs: int | None = Bounds.gap_epochs,
        stop: bool = False,
    ) -> None:
        self.advise, self.stop = advise, stop
        self.bounds = Bounds(variance, erank, gap_epochs, warmup_epochs)
        self.measured: list[MeasuredEpoch] = []
        self.warnings: list[dict[str, Any]] = []
        self.stopped: str | None = None

    def state_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "warnings": self.warnings,
            "readings": [asdict(epoch) for epoch in self.measured],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        version = state_dict.get("format", 1)
        shift = version == 1  # epochs counted from 0
        self.warnings = [
            {**entry, "epoch": entry["epoch"] + shift} for entry in state_dict.get("warnings", [])
        ]
        readings = state_dict["readings"] if version == FORMAT else []
        self.measured = [MeasuredEpoch(**epoch) for epoch in readings]

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        latest = _read(trainer)
        if latest is None:
            return
        self.measured = [*self.measured, latest][-self.bounds.epochs_read :]
        warned = {warning["kind"] for warning in self.warnings}
        kinds = collapse.kinds_of_collapse(self.measured, self.bounds)
        new = trainer.strategy.broadcast([kind for kind in kinds if kind not in warned])
        for kind in new:
            why = self.advise(kind, epoch=latest.epoch - 1)
            text = f"{FACTS[kind](latest, self.bounds)} {why}"
            self.warnings.append({"kind": kind, "epoch": latest.epoch, "text": text})
            if trainer.is_global_zero:
                log.warning(f"warning: {text}")
        if new and self.stop and not ends(trainer):
            self.stopped = f"watch.stop: {new[0]} in epoch {latest.epoch}"
            trainer.should_stop = True
            if trainer.is_global_zero:
                log.warning(f"the run ends here, since watch.stop=true ({new[0]})")


# What was seen, by kind of collapse.
FACTS: dict[str, Callable[[MeasuredEpoch, Bounds], str]] = {
    collapse.COMPLETE: lambda seen, bounds: (
        f"complete collapse in epoch {seen.epoch}: all images get nearly the same output "
        f"(feature/spread is {seen.variance:.2g} of at most 1; watch.variance={bounds.variance:g})."
    ),
    collapse.DIMENSIONAL: lambda seen, bounds: (
        f"dimensional collapse in epoch {seen.epoch}: around their mean, the outputs span "
        f"{seen.erank:.1f} of {seen.dimensions} directions, which is below "
        f"{bounds.directions(seen.dimensions):.1f} (watch.erank=null switches this warning off)."
    ),
    collapse.UNIFORM: lambda seen, bounds: (
        f"equal assignments in epoch {seen.epoch}: the softmax gives all images nearly the same "
        f"assignment (their effective rank is {seen.assigned:.2f}; 1 if all are equal; "
        "watch.variance=null switches this warning off)."
    ),
    collapse.WRONG_WAY: lambda seen, bounds: (
        f"negative gap in epoch {seen.epoch}: for {bounds.gap_epochs} measured epochs in a row the "
        "target's effective rank has been below the online one's, by "
        f"{-math.expm1(seen.gap):.1%} now, where it should lead."
    ),
}


def _read(trainer: Any) -> MeasuredEpoch | None:
    """What this epoch measured; None where nothing, or nothing finite, was measured."""
    metrics = trainer.callback_metrics
    diagnostics = Diagnostics.of(trainer)
    names = ("feature/spread", "erank/centred", "erank/online", "erank/target")
    if diagnostics is None or diagnostics.latest is None or any(n not in metrics for n in names):
        return None
    spread, erank, online, target = (float(metrics[name]) for name in names)
    if not math.isfinite(spread + erank):
        return None
    # Outputs that are all zero have no rank, and no gap.
    gap = math.log(target / online) if min(online, target) > 0 else math.nan
    epoch = trainer.current_epoch + 1
    softmax = diagnostics.latest.lam_logits is not None
    assigned = float(metrics["erank/projection"]) if softmax else math.nan
    return MeasuredEpoch(epoch, spread, erank, diagnostics.latest.dimensions, gap, assigned)
