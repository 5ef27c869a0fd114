"""Errors that the user can fix, and the parts of their messages."""

import difflib
from collections.abc import Iterable
from pathlib import Path


class UserError(ValueError):
    """An error that the user can fix; commands print its message without a traceback."""


class CannotWrite(UserError):
    """An error for a file that cannot be written."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(f"{path} cannot be written: {error.strerror or error}")


def suggest(word: object, allowed: Iterable[str]) -> str:
    """Return a clause that names the closest allowed word, or an empty string.

    >>> suggest("COSIN", ["linear", "cosine"])
    "; did you mean 'cosine'?"
    >>> suggest("step", ["linear", "cosine"])
    ''
    """
    by_lower_case = {name.lower(): name for name in allowed}
    close = difflib.get_close_matches(str(word).lower(), by_lower_case, n=1)
    if not close:
        return ""
    return f"; did you mean {by_lower_case[close[0]]!r}?"


def printable(text: object) -> str:
    """Return the text on one line, with unprintable characters escaped.

    >>> print(printable("σ"), printable("two\\nlines"))
    σ two\\nlines
    """
    text = str(text)
    if text.isprintable():
        return text
    return repr(text)[1:-1]


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the class name if there is no message.

    >>> first_line(ValueError("first\\nsecond")), first_line(KeyError())
    ('first', 'KeyError')
    """
    message = str(error).strip()
    if not message:
        return type(error).__name__
    return message.splitlines()[0]


def join_first(names: Iterable[str]) -> str:
    """Join up to three names and count the others.

    >>> join_first("abcde"), join_first("ab")
    ('a; b; c; and 2 more', 'a; b')
    """
    names = list(names)
    parts = names[:3]
    if len(names) > 3:
        parts.append(f"and {len(names) - 3} more")
    return "; ".join(parts)
