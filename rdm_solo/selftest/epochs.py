"""What the spectra take of an epoch of CIFAR-10's size, and how often to measure them."""

import math
import statistics
from collections.abc import Iterator

from rdm_solo.bench.spectra import IMAGES, measure
from rdm_solo.selftest.results import FAILED, OK, Check, Result, Settings

MOST = 0.03  # of an epoch's time


def checks(settings: Settings) -> Iterator[Check]:
    """One line."""
    yield Check("spectra of an epoch", lambda: [_line(settings)])


def every(share: float) -> int:
    """``diagnostics.every_n_epochs`` with which the spectra take at most 3 % of the time.

    >>> every(0.002), every(0.03), every(0.07)
    (1, 1, 3)
    """
    return max(1, math.ceil(share / MOST))


def _line(settings: Settings) -> Result:
    found = measure(settings.runs, settings.device, settings.overrides)
    share = found.seconds / found.epoch
    reading = statistics.median(found.reading)
    figure = (
        f"{found.seconds:.1f} s ({reading:.1f} s of it eigenvalues) beside {found.epoch:.0f} s of "
        f"{found.steps} steps: {share:.1%}"
    )
    if share >= MOST:
        figure += f"; for less than {MOST:.0%}: diagnostics.every_n_epochs={every(share)}"
    return Result(
        f"spectra of {IMAGES} images, k = {found.k}",
        OK if math.isfinite(share) else FAILED,
        figure,
        details={
            "step": found.plain,
            "recording a step": found.recording,
            "eigenvalues": found.reading,
            "steps": found.steps,
            "recorded steps": found.recorded,
            "batch": found.batch,
            "image size": found.size,
        },
    )
