"""Warn once of each kind of collapse, by the rules of :mod:`rdm_solo.spectra.collapse`."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rdm_solo.distributed import broadcast_object, rank
from rdm_solo.spectra.collapse import RULE, Bounds, MeasuredEpoch, kinds_of_collapse

if TYPE_CHECKING:
    from rdm_solo.spectra.epoch_summary import Spectra

log = logging.getLogger("rdm_solo")

ACCURACIES = ("val/knn_acc1", "val/acc1")


class Alarm:
    """Warns once of each kind of collapse; the first process decides for all.

    ``advise(kind, epoch=...)`` returns the likeliest cause and the remedy, ``option(name, value)``
    how the user writes a bound. ``measured`` holds the epochs so far.
    """

    def __init__(
        self,
        bounds: Bounds,
        advise: Callable[..., str],
        option: Callable[[str, Any], str],
        measured: Sequence[MeasuredEpoch] = (),
        warnings: Sequence[dict[str, Any]] = (),
    ) -> None:
        self.bounds, self.advise, self.option = bounds, advise, option
        self.measured, self.warnings = list(measured), list(warnings)

    def read(self, epoch: MeasuredEpoch) -> list[str]:
        """Return the kinds of collapse that this epoch shows for the first time."""
        self.measured.append(epoch)
        warned = {warning["kind"] for warning in self.warnings}
        kinds = kinds_of_collapse(self.measured, self.bounds)
        new = broadcast_object([kind for kind in kinds if kind not in warned])
        for kind in new:
            fact = RULE[kind].sentence(self.measured, self.bounds, self.option)
            text = f"{fact} {self.advise(kind, epoch=epoch.epoch - 1)}"
            self.warnings.append({"kind": kind, "epoch": epoch.epoch, "text": text})
            if rank() == 0:
                log.warning(f"warning: {text}")
        return new


def just_measured(
    scalars: Mapping[str, Any], spectra: "Spectra | None", epoch: int, classes: int | None = None
) -> MeasuredEpoch:
    """Return the epoch that ends; without its spectra only the accuracies are new."""
    if spectra is None:
        fresh = {name: scalars[name] for name in ACCURACIES if name in scalars}
        return MeasuredEpoch.read(fresh, epoch, classes=classes)
    softmax = spectra.lam_logits is not None
    return MeasuredEpoch.read(scalars, epoch, spectra.dimensions, softmax, classes)
