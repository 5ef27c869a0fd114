"""Checks of values that a user passed, and the sentence that refuses one.

Each check returns the value, or raises a :class:`UserError` that names the option, the allowed
values and the one received. ``alternative`` names another value that the caller allows.
"""

import math
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
        self.errno = error.errno


def suggest(word: object, allowed: Iterable[str]) -> str:
    """Return a clause that names the closest allowed word, or an empty string.

    >>> suggest("cosin", ["linear", "cosine"])
    "; did you mean 'cosine'?"
    """
    import difflib

    close = difflib.get_close_matches(str(word), list(allowed), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def check_whole(
    name: str, value: Any, least: int = 0, most: int = LARGEST, alternative: str = ""
) -> int:
    """Return the value if it is an integer from ``least`` to ``most``.

    >>> check_whole("batch_size", 2.0, 2)
    Traceback (most recent call last):
    rdm_solo.messages.UserError: batch_size must be a whole number of at least 2, got 2.0.
    """
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if whole and least <= value <= most:
        return int(value)
    named = most != LARGEST or (whole and value > most)
    interval = f"from {least} to {most}" if named else f"of at least {least}"
    _refuse(name, value, f"a whole number {interval}", alternative)


def check_number(
    name: str,
    value: Any,
    least: float | None = None,
    most: float | None = None,
    *,
    above: float | None = None,
    below: float | None = None,
    alternative: str = "",
) -> float:
    """Return the value as a float if it is finite and in the interval.

    ``above`` and ``below`` exclude the ends.

    >>> check_number("lr", 1, least=0)
    1.0
    >>> check_number("momentum", float("nan"), 0, 1)
    Traceback (most recent call last):
    rdm_solo.messages.UserError: momentum must be a number from 0 to 1, got nan.
    """
    number = finite(value)
    if number is not None and (
        (least is None or number >= least)
        and (most is None or number <= most)
        and (above is None or number > above)
        and (below is None or number < below)
    ):
        return number
    at_most = "at most" if least is not None or above is not None else "of at most"
    limits = {"of at least": least, "above": above, at_most: most, "below": below}
    interval = " and ".join(f"{words} {x}" for words, x in limits.items() if x is not None)
    if least is not None and most is not None:
        interval = f"from {least} to {most}"
    _refuse(name, value, f"a number {interval}" if interval else "a finite number", alternative)


def check_switch(name: str, value: object, alternative: str = "") -> bool:
    """Return the value if it is True or False; Hydra passes ``no`` and ``off`` as text.

    >>> check_switch("dataset.download", "no")
    Traceback (most recent call last):
    rdm_solo.messages.UserError: dataset.download must be true or false, got 'no'.
    """
    if isinstance(value, bool):
        return value
    _refuse(name, value, "true or false", alternative)


def check_choice(name: str, value: object, allowed: Iterable[str]) -> str:
    """Return the value if it is one of the allowed words.

    >>> check_choice("schedule", "cosin", ["linear", "cosine"])
    Traceback (most recent call last):
    rdm_solo.messages.UserError: schedule must be one of linear, cosine, got 'cosin'; \
did you mean 'cosine'?
    """
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
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


# The packages of the extra `train`, by the names under which they are imported.
OF_TRAINING = (
    "hydra",
    "lightning",
    "pytorch_lightning",
    "torchvision",
    "timm",
    "einops",
    "scipy",
    "sklearn",
    "tqdm",
    "safetensors",
)


def what_to_install(error: BaseException | None) -> str | None:
    """Return the sentence for a missing package that training needs; None for other errors.

    >>> what_to_install(ModuleNotFoundError("", name="hydra.core")).partition(":")[0]
    'hydra is not installed, which this command needs'
    >>> what_to_install(ModuleNotFoundError("", name="torch"))
    """
    name = (getattr(error, "name", None) or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or name not in OF_TRAINING:
        return None
    return (
        f"{name} is not installed, which this command needs: pip install 'rdm-solo[train]' brings "
        "what training needs; then solo-learn, without its dependencies: "
        "pip install --no-deps solo-learn==1.0.2"
    )


def _refuse(
    name: str, value: object, allowed: str, alternative: str = "", hint: str = ""
) -> NoReturn:
    other = f", or {alternative}" if alternative else ""
    raise UserError(f"{name} must be {allowed}{other}, got {shown(value)}{hint or '.'}")


def shown(value: object) -> str:
    """Return the value's repr, shortened to 200 characters.

    >>> shown("a"), len(shown("a" * 10**6))
    ("'a'", 200)
    """
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."


def printable(text: object) -> str:
    r"""Return the text on one line, with escapes for what cannot be printed.

    >>> printable("a cat.jpg"), printable("two\nlines\udcff.jpg")
    ('a cat.jpg', 'two\\nlines\\udcff.jpg')
    """
    return str(text) if str(text).isprintable() else repr(str(text))[1:-1]


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its class's name if it is empty.

    >>> first_line(ValueError("\\n no room\\nleft")), first_line(KeyError())
    ('no room', 'KeyError')
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def listed(names: Iterable[str]) -> str:
    """Return the first three names and the number of others.

    >>> listed("abcde"), listed("ab")
    ('a; b; c; and 2 more', 'a; b')
    """
    names = list(names)
    more = [f"and {len(names) - 3} more"] if len(names) > 3 else []
    return "; ".join([*names[:3], *more])
