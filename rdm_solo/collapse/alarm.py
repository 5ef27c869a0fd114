"""Warn once about each kind of collapse, using the rules of :mod:`rdm_solo.collapse.rules`."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rdm_solo.collapse.rules import RULE, Bounds, MeasuredEpoch, kinds_of_collapse
from rdm_solo.ground.distributed import broadcast_object, rank

if TYPE_CHECKING:
    from rdm_solo.spectra.epoch_summary import Spectra

log = logging.getLogger("rdm_solo")

ACCURACIES = ("val/knn_acc1", "val/acc1")


class Alarm:
    """Warn once about each kind of collapse. Rank 0 decides for all processes.

    ``advise(kind, epoch=...)`` returns the likeliest cause and the remedy, ``option(name, value)``
    formats a bound as the user passes it. ``epochs`` are the earlier epochs.
    """

    def __init__(
        self,
        bounds: Bounds,
        advise: Callable[..., str],
        option: Callable[[str, Any], str],
        epochs: Sequence[MeasuredEpoch] = (),
        warnings: Sequence[dict[str, Any]] = (),
    ) -> None:
        self.bounds, self.advise, self.option = bounds, advise, option
        self.epochs, self.warnings = list(epochs), list(warnings)

    def update(self, epoch: MeasuredEpoch) -> list[str]:
        """Add an epoch, and return the kinds of collapse that occur for the first time."""
        self.epochs.append(epoch)
        earlier_kinds = {warning["kind"] for warning in self.warnings}
        kinds = kinds_of_collapse(self.epochs, self.bounds)
        new = broadcast_object([kind for kind in kinds if kind not in earlier_kinds])
        for kind in new:
            sentence = RULE[kind].sentence(self.epochs, self.bounds, self.option)
            text = f"{sentence} {self.advise(kind, epoch=epoch.epoch - 1)}"
            self.warnings.append({"kind": kind, "epoch": epoch.epoch, "text": text})
            if rank() == 0:
                log.warning(f"{'note' if RULE[kind].note else 'warning'}: {text}")
        return new


def measured_epoch(
    scalars: Mapping[str, Any], spectra: "Spectra | None", epoch: int, classes: int | None = None
) -> MeasuredEpoch:
    """Return an epoch's values for the collapse rules; only accuracies if there are no spectra."""
    if spectra is None:
        accuracies = {name: scalars[name] for name in ACCURACIES if name in scalars}
        return MeasuredEpoch.read(accuracies, epoch, classes=classes)
    return MeasuredEpoch.read(scalars, epoch, spectra.dimensions, classes)
