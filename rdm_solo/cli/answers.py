"""Answers to the user: one sentence on the terminal and an exit status."""

import contextlib
import io
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from rdm_solo.messages import CannotWrite, UserError, first_line, what_to_install


def say_anything() -> None:
    """Print ``?`` for characters that the terminal cannot show, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def log_to_terminal() -> None:
    """Print what is logged, where Hydra has not set this up."""
    console = logging.StreamHandler(sys.stdout)
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[console])


def fail(message: str) -> NoReturn:
    """Print one sentence and end the process with status 2."""
    sys.stderr.write(f"error: {message}\n")  # in one piece: another process may print the same
    sys.stderr.flush()
    raise SystemExit(2)


@contextlib.contextmanager
def sentences() -> Iterator[None]:
    """Print errors that are answers to the user as one sentence, without a traceback."""
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except OmegaConfBaseException as error:  # a key that is missing, or no section of options
        fail(first_line(error))
    except (ValueError, ImportError, CannotWrite) as error:
        fail(what_to_install(error) or str(error))


@contextlib.contextmanager
def naming_what_the_config_lacks() -> Iterator[None]:
    """Turn OmegaConf's errors about a composed config into a ValueError with one sentence."""
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except OmegaConfBaseException as error:
        raise UserError(
            f"the config cannot be used ({error.full_key}: {str(error).splitlines()[0]}): a file "
            "of your own needs every key of the one that it stands for."
        ) from error


def instantiate(node: Any, **options: Any) -> Any:
    """What the node's ``_target_`` makes; ValueError or ImportError, in a sentence, where not."""
    import hydra.utils
    from hydra.errors import InstantiationException

    try:
        return hydra.utils.instantiate(node, **options)
    except InstantiationException as error:
        cause = error.__cause__ or error
        if isinstance(cause, (ValueError, ImportError)) and "\n" not in str(cause):
            raise cause from None
        reason = " ".join(str(cause).splitlines()[:2])
        raise UserError(f"{getattr(node, '_target_', node)} cannot be called: {reason}") from error


def make_folder(folder: Path, option: str = "out=FOLDER") -> None:
    """Make the folder for results, or raise a ValueError that says why it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder} cannot be made ({error.strerror}): give {option}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"{folder} cannot be written to: give {option}")
