"""Check values that a user passed.

Each check returns the value or raises a :class:`UserError` that names the option, the allowed
values and the received value. ``alternative`` describes a value that the caller also allows.
"""

import math
import sys
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any, NoReturn

from rdm_solo.ground.errors import UserError, suggest

# Counts and sizes are passed to C code as 32-bit integers.
MAX_INT = 2**31 - 1


def check_integer(
    name: str, value: Any, minimum: int = 0, maximum: int = MAX_INT, alternative: str = ""
) -> int:
    """Return the value if it is an integer from ``minimum`` to ``maximum``."""
    is_integer = isinstance(value, Integral) and not isinstance(value, bool)
    if is_integer and minimum <= int(value) <= maximum:
        return int(value)
    limits = f"from {minimum} to {maximum}"
    if maximum == MAX_INT:
        limits = f"of at least {minimum}"
    _refuse(name, value, f"an integer {limits}", alternative)


def check_number(
    name: str,
    value: Any,
    minimum: float = -math.inf,
    maximum: float = math.inf,
    *,
    above: float = -math.inf,
    alternative: str = "",
) -> float:
    """Return the value as a float if it is in [minimum, maximum] and greater than ``above``."""
    number = finite(value)
    if number is not None and minimum <= number <= maximum and number > above:
        return number
    limits = f"from {minimum} to {maximum}"
    if maximum == math.inf:
        limits = f"of at least {minimum}"
    if above > -math.inf:
        limits = f"above {above} and at most {maximum}"
    _refuse(name, value, f"a number {limits}", alternative)


def check_bool(name: str, value: object, alternative: str = "") -> bool:
    """Return the value if it is True or False; Hydra passes ``no`` and ``off`` as text."""
    if isinstance(value, bool):
        return value
    _refuse(name, value, "true or false", alternative)


def check_choice(name: str, value: object, allowed: Iterable[str], alternative: str = "") -> str:
    """Return the value if it is one of the allowed words."""
    words = list(allowed)
    if isinstance(value, str) and value in words:
        return value
    hint = suggest(value, words)
    _refuse(name, value, f"one of {', '.join(words)}", alternative, hint)


def finite(value: object) -> float | None:
    """Return the value as a float, or None if it is not a finite number.

    >>> finite(2), finite(True), finite(float("inf")), finite(10**400)
    (2.0, None, None, None)
    """
    if not isinstance(value, Real) or isinstance(value, bool):
        return None
    if abs(value) <= sys.float_info.max:  # type: ignore[operator]
        return float(value)
    return None


def _refuse(
    name: str, value: object, allowed: str, alternative: str = "", hint: str = ""
) -> NoReturn:
    if alternative:
        allowed += f", or {alternative}"
    raise UserError(f"{name} must be {allowed}, got {value!r:.200}{hint or '.'}")
