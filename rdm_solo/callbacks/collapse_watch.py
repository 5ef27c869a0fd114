"""A watch over a run's spectra that says once, in words, when and why they collapse."""

import logging
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from rdm_solo.callbacks.alarm import Alarm, just_measured
from rdm_solo.callbacks.diagnostics import Diagnostics
from rdm_solo.callbacks.last_epoch import ends
from rdm_solo.lightning import pl
from rdm_solo.spectra.collapse import Bounds, MeasuredEpoch

log = logging.getLogger("rdm_solo")

FORMAT = 3  # of the state in a checkpoint; readings of earlier versions are other numbers


class CollapseWatch(pl.Callback):
    """Warns once for each kind of collapse, and ends the run at the first if ``stop`` is set.

    It reads the spectra of :class:`~rdm_solo.callbacks.Diagnostics`. ``advise(kind, epoch=...)``
    gives the likeliest cause of a collapse and the remedy.
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
        self.stop = stop
        bounds = Bounds(variance, erank, gap_epochs, warmup_epochs)
        self.alarm = Alarm(bounds, advise, _option)
        self.stopped: str | None = None

    @property
    def warnings(self) -> list[dict[str, Any]]:
        return self.alarm.warnings

    def state_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "warnings": self.alarm.warnings,
            "readings": [asdict(epoch) for epoch in self.alarm.measured],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        version = state_dict.get("format", 1)
        shift = version == 1  # epochs counted from 0
        self.alarm.warnings = [
            {**entry, "epoch": entry["epoch"] + shift} for entry in state_dict.get("warnings", [])
        ]
        readings = state_dict["readings"] if version == FORMAT else []
        self.alarm.measured = [MeasuredEpoch(**epoch) for epoch in readings]

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        diagnostics = Diagnostics.of(trainer)
        spectra = None if diagnostics is None else diagnostics.latest
        epoch = trainer.current_epoch + 1
        new = self.alarm.read(just_measured(trainer.callback_metrics, spectra, epoch))
        if new and self.stop and not ends(trainer):
            self.stopped = f"watch.stop: {new[0]} in epoch {epoch}"
            trainer.should_stop = True
            if trainer.is_global_zero:
                log.warning(f"the run ends here, since watch.stop=true ({new[0]})")


def _option(name: str, value: Any) -> str:
    """A bound as it is typed."""
    return f"watch.{name}=null" if value is None else f"watch.{name}={value:g}"
