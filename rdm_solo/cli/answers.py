"""Answers to the user: one sentence on the terminal and an exit status."""

import contextlib
import io
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from rdm_solo.messages import UserError, first_line, what_to_install


def log_to_terminal() -> None:
    """Print what is logged; characters that the terminal cannot show become ``?``."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    logging.getLogger().setLevel(logging.INFO)
    logging.getLogger().addHandler(logging.StreamHandler(sys.stdout))


def fail(message: str) -> NoReturn:
    """Print one sentence and exit with status 2."""
    sys.stderr.write(f"error: {message}\n")  # in one piece: another process may print as well
    raise SystemExit(2)


@contextlib.contextmanager
def errors_as_sentences() -> Iterator[None]:
    """Print errors that answer the user as one sentence, without a traceback."""
    try:
        yield
    except UserError as error:
        fail(str(error))
    except ImportError as error:
        sentence = what_to_install(error)
        if sentence is None:
            raise
        fail(sentence)


def instantiate(node: Any, **options: Any) -> Any:
    """Call the node's ``_target_`` through Hydra; its errors become one :class:`UserError`."""
    import hydra.utils
    from hydra.errors import InstantiationException

    try:
        return hydra.utils.instantiate(node, **options)
    except InstantiationException as error:
        cause = error.__cause__ or error
        if isinstance(cause, UserError):
            raise cause from None
        reason = " ".join(str(cause).splitlines()[:2])
        raise UserError(f"{getattr(node, '_target_', node)} cannot be called: {reason}") from error


def make_folder(folder: Path, option: str = "out=FOLDER") -> None:
    """Make the folder for results, or raise a :class:`UserError` that names the option."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder} cannot be made ({first_line(error)}): give {option}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"{folder} cannot be written to: give {option}")
