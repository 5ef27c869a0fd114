"""Files of a run's folder, which may come from a stranger: regular, inside it, of sane size."""

import contextlib
import io
import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from omegaconf import OmegaConf

from rdm_solo.messages import UserError, first_line

# The most bytes of a file that is read as a whole, far above what a run writes.
MOST_CONFIG, MOST_JSON, MOST_TABLE, MOST_ARRAYS = 2**18, 2**24, 2**26, 2**30
MOST_EPOCHS = 10**7  # that a table, spectra or a checkpoint may name
# Of a YAML file: values, levels, and letters of one value.
MOST_EVENTS, DEEPEST, LONGEST = 20_000, 20, 2**14


class Unreadable(UserError):
    """A file of a run that cannot be read; ``reason`` says why without its name."""

    def __init__(self, path: Path, reason: str) -> None:
        self.reason = reason
        super().__init__(f"{path} cannot be read ({reason})")


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Name the path in every error of what is built from it, which may be of any kind."""
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
    """The path ``folder/name``; :class:`Unreadable` where a link leads it out of the folder."""
    path = folder / name
    try:
        within = path.resolve().is_relative_to(folder.resolve())
        if within and not path.exists():
            path.resolve(strict=True)  # Python 3.13 resolves a circle of links without a word
    except FileNotFoundError:  # it is not there, or a link to nothing
        pass
    except (OSError, RuntimeError) as error:  # a circle of links
        raise Unreadable(path, f"it cannot be followed ({type(error).__name__})") from error
    if not within:
        raise Unreadable(path, "it is a link that leads out of the folder, and is not followed")
    return path


def regular(folder: Path, name: str | Path, most: int | None = None) -> Path:
    """The path of a regular file inside the folder; FileNotFoundError without it.

    :class:`Unreadable` for a link that leads out of the folder, for a pipe or a device, which would
    be waited for, and for more than ``most`` bytes.
    """
    path = inside(folder, name)
    state = path.stat()
    if not stat.S_ISREG(state.st_mode):
        raise Unreadable(path, "it is not a regular file")
    if most is not None and state.st_size > most:
        raise Unreadable(path, f"it has {state.st_size:,} bytes; a run writes at most {most:,}")
    return path


def read_bytes(folder: Path, name: str | Path, most: int = MOST_JSON) -> bytes:
    """The bytes of a :func:`regular` file."""
    with open(regular(folder, name, most), "rb") as file:
        return file.read(most)


def read_text(folder: Path, name: str | Path, most: int = MOST_JSON) -> str:
    """The UTF-8 text of a :func:`regular` file."""
    try:
        return read_bytes(folder, name, most).decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unreadable(folder / name, f"it is not UTF-8 text ({error})") from error


def read_object(folder: Path, name: str | Path) -> dict[str, Any]:
    """The object that a JSON file holds."""
    text = read_text(folder, name)
    try:
        found = json.loads(text)
    except RecursionError as error:
        raise Unreadable(folder / name, "it is nested too deeply") from error
    except ValueError as error:  # no JSON, or a number of thousands of digits
        raise Unreadable(folder / name, str(error)) from error
    if not isinstance(found, dict):
        raise Unreadable(folder / name, "it is not a JSON object")
    return found


def read_yaml(folder: Path, name: str | Path) -> Any:
    """The plain values in a YAML file, which may neither repeat parts of itself nor nest deeply."""
    text = read_text(folder, name, MOST_CONFIG)
    try:
        _check_events(text)
        return OmegaConf.to_container(OmegaConf.load(io.StringIO(text)), resolve=False)
    except Exception as error:  # YAML's, OmegaConf's and ours
        raise Unreadable(folder / name, first_line(error)) from error


def _check_events(text: str) -> None:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth = 0
    for number, event in enumerate(yaml.parse(text, Loader=loader)):
        if isinstance(event, yaml.AliasEvent):
            raise UserError("it has a YAML alias (*name), which no run's config has")
        if isinstance(event, yaml.ScalarEvent) and len(event.value) > LONGEST:
            raise UserError(f"it has a value of {len(event.value):,} letters")
        if isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            depth += 1
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            depth -= 1
        if depth > DEEPEST or number > MOST_EVENTS:
            raise UserError(f"it has more than {DEEPEST} levels or {MOST_EVENTS:,} values")
