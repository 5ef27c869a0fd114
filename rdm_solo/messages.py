"""What is said to the user when a name is wrong: the nearest known one."""

from __future__ import annotations

__all__ = ["suggest"]


def suggest(word: object, allowed: tuple[str, ...] | list[str]) -> str:
    """The clause that names the closest allowed word, or nothing when none is close.

    >>> suggest("cosin", ["linear", "cosine"])
    "; did you mean 'cosine'?"
    """
    import difflib

    close = difflib.get_close_matches(str(word), list(allowed), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
