"""Why a run failed: one line in its folder, by the first of its processes that failed."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from rdm_solo.messages import UserError, first_line
from rdm_solo.runs import reading
from rdm_solo.runs.files import FAILED


@contextlib.contextmanager
def noted(folder: Path) -> Iterator[None]:
    """Write the first line of an error in the body to the folder; the error is raised again."""
    (folder / FAILED).unlink(missing_ok=True)
    try:
        yield
    except Exception as error:
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        note(folder, f"{kind}{first_line(error)}")
        raise


def note(folder: Path, reason: str) -> None:
    """Write the reason of a failure to the folder unless another process has."""
    with contextlib.suppress(OSError), open(folder / FAILED, "x", encoding="utf-8") as file:
        file.write(f"{reason}\n")


def of(folder: Path) -> str | None:
    """Return the reason why the run in that folder failed; None if it did not."""
    try:
        text = reading.read_text(folder, FAILED)
    except (OSError, ValueError):
        return None
    # Control characters in a stranger's file would act on the terminal.
    return "".join(sign if sign.isprintable() else " " for sign in text).strip() or None
