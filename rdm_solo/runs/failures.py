"""Why a run has failed: one line in its folder, whichever of its processes was the first."""

from pathlib import Path

from rdm_solo.runs.files import FAILED


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
    learn of it.
    """
    try:
        with (folder / FAILED).open("x", encoding="utf-8") as file:
            file.write(f"{why}\n")
    except FileExistsError:
        return of(folder) or why  # both at the same moment
    except OSError:  # a full disk may be the very reason
        pass
    return None


def of(folder: Path) -> str | None:
    """The reason that a run has left there; None where there is none."""
    try:
        return (folder / FAILED).read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None
