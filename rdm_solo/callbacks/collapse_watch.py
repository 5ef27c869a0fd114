"""Warn of collapse while a run trains."""

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


class CollapseWatch(pl.Callback):
    """Warn once of each kind of collapse; with ``stop`` the first warning ends the run.

    It reads the spectra of :class:`~rdm_solo.callbacks.Diagnostics` and the accuracies that were
    logged. ``bounds`` are those of :class:`~rdm_solo.spectra.collapse.Bounds`.
    ``advise(kind, epoch=...)`` returns the likeliest cause of a collapse and the remedy.
    """

    after = ("Diagnostics", "WeightedKNN")

    def __init__(
        self, advise: Callable[..., str], warmup_epochs: float, stop: bool = False, **bounds: Any
    ) -> None:
        self.stop = stop
        self.alarm = Alarm(Bounds(warmup=warmup_epochs, **bounds), advise, _option)
        self.stopped: str | None = None

    @property
    def warnings(self) -> list[dict[str, Any]]:
        return self.alarm.warnings

    def state_dict(self) -> dict[str, Any]:
        measured = [asdict(epoch) for epoch in self.alarm.measured]
        return {"warnings": self.alarm.warnings, "measured": measured}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.alarm.warnings = state_dict["warnings"]
        self.alarm.measured = [MeasuredEpoch(**epoch) for epoch in state_dict["measured"]]

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        diagnostics = Diagnostics.of(trainer)
        spectra = None if diagnostics is None else diagnostics.latest
        epoch, classes = trainer.current_epoch + 1, getattr(pl_module, "num_classes", None)
        new = self.alarm.read(just_measured(trainer.callback_metrics, spectra, epoch, classes))
        if new and self.stop and not ends(trainer):
            self.stopped = f"watch.stop: {new[0]} in epoch {epoch}"
            trainer.should_stop = True
            if trainer.is_global_zero:
                log.warning(f"the run ends here, since watch.stop=true ({new[0]})")


def _option(name: str, value: Any) -> str:
    """Return an option as it is written on the command line."""
    return f"watch.{name}=null" if value is None else f"watch.{name}={value:g}"
