"""Read files of a run's folder, which may come from a stranger, as data."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from rdm_solo.messages import UserError, first_line


class Unreadable(UserError):
    """A file of a run that cannot be read; ``reason`` says why without its name."""

    def __init__(self, path: Path, reason: str) -> None:
        self.reason = reason
        super().__init__(f"{path} cannot be read ({reason})")


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Name the path in errors about what is built from it, whatever their kind."""
    try:
        yield
    except ImportError:
        raise
    except Exception as error:
        if isinstance(error, ValueError) and str(path) in str(error):
            raise
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise UserError(f"{path}: {kind}{first_line(error)}") from error


def inside(folder: Path, name: str | Path) -> Path:
    """Return ``folder/name``; :class:`Unreadable` if a link leads it out of the folder."""
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise Unreadable(path, "it is a link that leads out of the folder")
    return path


def regular(folder: Path, name: str | Path) -> Path:
    """Return the path of a regular file inside the folder.

    Raises FileNotFoundError if it is not there, and :class:`Unreadable` for a link that leads out
    of the folder, and for a pipe or a device, which would block.
    """
    path = inside(folder, name)
    path.stat()
    if not path.is_file():
        raise Unreadable(path, "it is not a regular file")
    return path


def read_text(folder: Path, name: str | Path) -> str:
    """Return the UTF-8 text of a :func:`regular` file."""
    try:
        return regular(folder, name).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise Unreadable(folder / name, f"it is not UTF-8 text ({error})") from error


def read_object(folder: Path, name: str | Path) -> dict[str, Any]:
    """Return the object in a JSON file."""
    text = read_text(folder, name)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(folder / name, first_line(error)) from error
    if not isinstance(content, dict):
        raise Unreadable(folder / name, "it is not a JSON object")
    return content


def read_yaml(folder: Path, name: str | Path) -> Any:
    """Return the plain values in a YAML file."""
    text = read_text(folder, name)
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise Unreadable(folder / name, first_line(error)) from error
