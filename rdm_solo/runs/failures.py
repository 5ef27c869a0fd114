"""Why a run has failed: one line in its folder, whichever of its processes was the first."""

import contextlib
from pathlib import Path

from rdm_solo.runs import reading
from rdm_solo.runs.files import FAILED, write_first

MOST_REASON = 2**16  # bytes


class AnotherProcessFailed(RuntimeError):
    """The run failed in another of its processes first, which has given the reason."""


def reason(error: BaseException) -> str:
    """What went wrong, in one line.

    >>> reason(RuntimeError("no room\\nleft"))
    'RuntimeError: no room'
    """
    lines = str(error).splitlines() or ["no reason given"]
    return f"{type(error).__name__}: {lines[0]}"


def note(folder: Path, why: str) -> str | None:
    """Leave the reason in the folder; where another process has left one, return that.

    The first to fail is the cause: it writes before its connections close, which is how the others
    learn of it. Where the disk is full, which may be the very reason, nothing is left.
    """
    path = folder / FAILED
    # The name of a file may hold bytes that are no text.
    content = f"{why}\n".encode("utf-8", errors="backslashreplace")
    with contextlib.suppress(OSError):
        if path.exists() and not path.stat().st_size:  # left by an earlier version on a full disk
            path.unlink()
        if not write_first(path, content):
            return of(folder) or why
    return None


def mark(folder: Path) -> tuple[int, int] | None:
    """Tells a reason in the folder from one that was there before; None where there is none.

    An earlier start of the run may have left one that nothing has removed since.
    """
    try:
        found = (folder / FAILED).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def of(folder: Path) -> str | None:
    """The reason that a run has left there; None where there is none."""
    try:
        said = reading.read_bytes(folder, FAILED, MOST_REASON).decode("utf-8", "replace")
    except (OSError, ValueError):
        return None
    # On a terminal, control characters would do more than be read.
    return "".join(letter if letter.isprintable() else " " for letter in said).strip() or None
