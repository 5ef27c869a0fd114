"""Answers to the user: one sentence on the terminal and an exit status."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

__all__ = ["Refusal", "fail", "make_folder", "say_anything", "sentences"]


def say_anything() -> None:
    """Let a terminal that has no sigma show ``?`` in its place, where Python would end the run."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


class Refusal(SystemExit):
    """Leaves with status 2, and knows why."""

    def __init__(self, message: str) -> None:
        super().__init__(2)
        self.message = message


def fail(message: str) -> NoReturn:
    """Say why in one sentence and leave with status 2."""
    sys.stderr.write(f"error: {message}\n")  # at once: another process may say the same
    sys.stderr.flush()
    raise Refusal(message)


@contextlib.contextmanager
def sentences() -> Iterator[None]:
    """Errors that answer the user leave as one sentence, without a traceback."""
    from hydra.errors import InstantiationException

    try:
        yield
    except InstantiationException as error:
        cause = error.__cause__
        fail(str(cause) if isinstance(cause, (ValueError, ImportError)) else _first_line(error))
    except (ValueError, ImportError) as error:
        fail(str(error))


def make_folder(folder: Path, option: str = "out=FOLDER") -> None:
    """The folder for results, or a ValueError that says why there can be none."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{folder} cannot be made ({error.strerror}): give {option}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(f"{folder} cannot be written to: give {option}")


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
