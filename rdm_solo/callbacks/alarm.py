"""Says once, in words, when spectra collapse, by the rules of :mod:`rdm_solo.spectra.collapse`."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rdm_solo.distributed import first_says, rank
from rdm_solo.spectra import collapse
from rdm_solo.spectra.collapse import Bounds, MeasuredEpoch
from rdm_solo.spectra.epoch_summary import Spectra

log = logging.getLogger("rdm_solo")

NAMES = ("feature/spread", "erank/centred", "erank/online", "erank/target")


class Alarm:
    """Warns once for each kind of collapse.

    Spectra are the same on all processes; the first one's word counts for all. ``advise(kind,
    epoch=...)`` gives the likeliest cause and the remedy; ``option(name, value)`` is how the user
    writes a bound.
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

    def read(self, epoch: MeasuredEpoch | None) -> list[str]:
        """The kinds of collapse that this epoch shows for the first time, on every process."""
        if epoch is None:
            return []
        self.measured = [*self.measured, epoch][-self.bounds.epochs_read :]
        warned = {warning["kind"] for warning in self.warnings}
        kinds = collapse.kinds_of_collapse(self.measured, self.bounds)
        new = first_says([kind for kind in kinds if kind not in warned])
        for kind in new:
            fact = FACTS[kind](epoch, self.bounds, self.option)
            text = f"{fact} {self.advise(kind, epoch=epoch.epoch - 1)}".strip()
            self.warnings.append({"kind": kind, "epoch": epoch.epoch, "text": text})
            if rank() == 0:
                log.warning(f"warning: {text}")
        return new


# What was seen, by kind of collapse.
FACTS: dict[str, Callable[[MeasuredEpoch, Bounds, Callable[[str, Any], str]], str]] = {
    collapse.COMPLETE: lambda seen, bounds, option: (
        f"complete collapse in epoch {seen.epoch}: all images get nearly the same output "
        f"(feature/spread is {seen.variance:.2g}, below {option('variance', bounds.variance)})."
    ),
    collapse.DIMENSIONAL: lambda seen, bounds, option: (
        f"dimensional collapse in epoch {seen.epoch}: around their mean, the outputs span "
        f"{seen.erank:.1f} of {seen.dimensions} directions, which is below "
        f"{bounds.directions(seen.dimensions):.1f} ({option('erank', None)} switches this warning "
        "off)."
    ),
    collapse.UNIFORM: lambda seen, bounds, option: (
        f"equal assignments in epoch {seen.epoch}: the softmax gives all images nearly the same "
        f"assignment (their effective rank is {seen.assigned:.2f}; 1 if all are equal; "
        f"{option('variance', None)} switches this warning off)."
    ),
    collapse.WRONG_WAY: lambda seen, bounds, option: (
        f"negative gap in epoch {seen.epoch}: for {bounds.gap_epochs} measured epochs in a row the "
        "target's effective rank has been below the online one's, by "
        f"{-math.expm1(seen.gap):.1%} now; it should be above."
    ),
}


def measured_epoch(
    row: Mapping[str, Any], epoch: int, dimensions: int, softmax: bool
) -> MeasuredEpoch | None:
    """What an epoch's row says, whether it was just measured or is read back; None where nothing,
    or nothing finite, was measured.

    ``dimensions`` are those of the outputs, ``softmax`` whether these go through one.

    >>> row = {"feature/spread": 0.5, "erank/centred": 4.0, "erank/online": 0, "erank/target": 5}
    >>> measured_epoch(row, 3, dimensions=8, softmax=False)
    MeasuredEpoch(epoch=3, variance=0.5, erank=4.0, dimensions=8, gap=nan, assigned=nan)
    """
    if any(name not in row for name in NAMES):
        return None
    spread, erank, online, target = (float(row[name]) for name in NAMES)
    if not math.isfinite(spread + erank):
        return None
    # Outputs that are all zero have no rank, and no gap.
    gap = math.log(target / online) if min(online, target) > 0 else math.nan
    assigned = float(row.get("erank/projection", math.nan)) if softmax else math.nan
    return MeasuredEpoch(epoch, spread, erank, dimensions, gap, assigned)


def just_measured(
    scalars: Mapping[str, Any], spectra: Spectra | None, epoch: int
) -> MeasuredEpoch | None:
    """The same of an epoch that ends, whose spectra are at hand."""
    if spectra is None:
        return None
    softmax = spectra.lam_logits is not None
    return measured_epoch(scalars, epoch, spectra.dimensions, softmax)
