"""Checks of values that a user passed, and the sentence that refuses one.

Each check returns the value, or raises a :class:`UserError` that names the option, the allowed
values and the one received. ``alternative`` names another value that the caller allows.
"""

import difflib
import math
import sys
from collections.abc import Iterable
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NoReturn

# Counts and sizes reach C code as 32-bit numbers; nothing that a run can use is larger.
LARGEST = 2**31 - 1


class UserError(ValueError):
    """An error whose message is the whole answer: a command prints it without a traceback."""


class CannotWrite(UserError):
    """A file cannot be written."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(f"{path} cannot be written: {error.strerror or error}")


def suggest(word: object, allowed: Iterable[str]) -> str:
    """Return a clause that names the closest allowed word, or an empty string.

    >>> suggest("cosin", ["linear", "cosine"])
    "; did you mean 'cosine'?"
    """
    close = difflib.get_close_matches(str(word), list(allowed), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def check_whole(
    name: str, value: Any, least: int = 0, most: int = LARGEST, alternative: str = ""
) -> int:
    """Return the value if it is an integer from ``least`` to ``most``."""
    if isinstance(value, Integral) and not isinstance(value, bool) and least <= int(value) <= most:
        return int(value)
    interval = f"of at least {least}" if most == LARGEST else f"from {least} to {most}"
    _refuse(name, value, f"a whole number {interval}", alternative)


def check_number(
    name: str,
    value: Any,
    least: float = -math.inf,
    most: float = math.inf,
    *,
    above: float = -math.inf,
    alternative: str = "",
) -> float:
    """Return the value as a float if it is from ``least`` to ``most`` and more than ``above``."""
    number = finite(value)
    if number is not None and least <= number <= most and number > above:
        return number
    limits = {"of at least": least, "above": above, "of at most": most}
    interval = " and ".join(f"{words} {x}" for words, x in limits.items() if math.isfinite(x))
    if math.isfinite(least) and math.isfinite(most):
        interval = f"from {least} to {most}"
    _refuse(name, value, f"a number {interval}" if interval else "a finite number", alternative)


def check_switch(name: str, value: object, alternative: str = "") -> bool:
    """Return the value if it is True or False; Hydra passes ``no`` and ``off`` as text."""
    if isinstance(value, bool):
        return value
    _refuse(name, value, "true or false", alternative)


def check_choice(name: str, value: object, allowed: Iterable[str]) -> str:
    """Return the value if it is one of the allowed words."""
    words = list(allowed)
    if isinstance(value, str) and value in words:
        return value
    _refuse(name, value, f"one of {', '.join(words)}", hint=suggest(value, words))


def finite(value: object) -> float | None:
    """Return the value as a float, or None if it is not a finite number.

    >>> finite(2), finite(True), finite(float("inf")), finite(10**400)
    (2.0, None, None, None)
    """
    if not isinstance(value, Real) or isinstance(value, bool):
        return None
    return float(value) if abs(value) <= sys.float_info.max else None  # type: ignore[operator]


def _refuse(
    name: str, value: object, allowed: str, alternative: str = "", hint: str = ""
) -> NoReturn:
    other = f", or {alternative}" if alternative else ""
    raise UserError(f"{name} must be {allowed}{other}, got {value!r:.200}{hint or '.'}")


def printable(text: object) -> str:
    """Return the text on one line, with escapes for what cannot be printed."""
    return str(text) if str(text).isprintable() else repr(str(text))[1:-1]


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its class's name if it is empty."""
    return str(error).strip().partition("\n")[0].rstrip() or type(error).__name__


def listed(names: Iterable[str]) -> str:
    """Return the first three names and the number of others.

    >>> listed("abcde"), listed("ab")
    ('a; b; c; and 2 more', 'a; b')
    """
    names = list(names)
    more = [f"and {len(names) - 3} more"] if len(names) > 3 else []
    return "; ".join([*names[:3], *more])
