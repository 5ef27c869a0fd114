"""What a check found: a line of the page, and the figures behind it."""

import math
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rdm_solo.messages import first_line

OK, FAILED, NOT_TESTED = "ok", "FAILED", "not tested"


@dataclass(frozen=True)
class Settings:
    """What the command was asked for: a device of torch's, how many processes, rounds that are
    timed, options of ``train`` for the training steps, and seconds that processes may take."""

    device: str
    devices: int
    runs: int
    overrides: tuple[str, ...] = ()
    patience: float = 300

    @property
    def on_cpu(self) -> bool:
        return self.device == "cpu"


@dataclass(frozen=True)
class Result:
    """A line of the page; ``details`` and ``traceback`` are for the file alone."""

    name: str
    verdict: str
    figure: str
    bound: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    traceback: str = ""


class Check(NamedTuple):
    """A function that finds results, and the name of its line where it fails with an error."""

    name: str
    run: Callable[[], list[Result]]


def attempt(check: Check) -> list[Result]:
    """What a check finds; where it raises an error, a line that says so.

    >>> attempt(Check("division", lambda: 1 / 0))[0].figure
    'ZeroDivisionError: division by zero'
    """
    try:
        return check.run()
    except Exception as error:
        said = f"{type(error).__name__}: {first_line(error)}"
        return [Result(check.name, FAILED, said, traceback=traceback.format_exc())]


def judged(name: str, errors: Mapping[str, float], bound: float) -> Result:
    """Whether each error is at most the bound; the largest one is shown, NaN before all.

    >>> judged("sums", {"few": 1e-9, "many": 2e-4}, 1e-5)  # doctest: +ELLIPSIS
    Result(name='sums', verdict='FAILED', figure='off by 2.0e-04: many', bound='1e-05', ...)
    """
    worst = max(errors, key=lambda case: math.inf if math.isnan(errors[case]) else errors[case])
    fine = errors[worst] <= bound
    figure = f"off by {errors[worst]:.1e}" + ("" if fine else f": {worst}")
    return Result(name, OK if fine else FAILED, figure, f"{bound:.0e}", dict(errors))


def not_tested(name: str, reason: str) -> Result:
    """A line that says why there is nothing to say."""
    return Result(name, NOT_TESTED, reason)
