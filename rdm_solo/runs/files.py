"""Name, read and write the files in a run's folder.

A folder may come from a stranger, so reading it executes nothing.
"""

import contextlib
import csv
import io
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import yaml  # type: ignore[import-untyped]

from rdm_solo.ground.errors import CannotWrite, UserError, first_line

CONFIG = ".hydra/config.yaml"  # every option with its value
OVERRIDES = ".hydra/overrides.yaml"  # the options that were passed
SWEEP = "multirun.yaml"  # the options of a sweep, which Hydra writes to the sweep's folder
LOG = "train.log"
METRICS = "metrics.csv"  # one row per epoch
SPECTRA = "spectra"  # a folder: eigenvalues and curves, one file per measured epoch
CHECKPOINT = "checkpoints/last.ckpt"
PREVIOUS = "checkpoints/previous.ckpt"  # the checkpoint before, in case last.ckpt is damaged
BEST = "checkpoints/best.ckpt"  # epoch with the highest kNN accuracy, if enabled
SUMMARY = "summary.json"  # written when the run ends
SKIPPED = "skipped.txt"  # images skipped because of dataset.skip_broken=true
FAILED = "failed.txt"  # why the run failed, in one line
OWNER = "owner.json"  # the process that writes to the folder, or wrote to it last
LOCK = ".lock"  # locked while the run's process is alive
LOGGERS = "loggers.json"  # ids that a resumed run needs to continue its loggers
FIGURES = "figures"
OUTPUTS = "outputs"  # a folder: outputs that a watch saved at a warning
PATCHES = "patches.npz"  # similarities of patches in the first trained epoch of a watch
LINEAR = "linear.json"  # linear evaluations
EXPORT = "export"


def make_results_folder(folder: Path, option: str = "out=FOLDER") -> None:
    """Create a folder for results, or raise a UserError that names the option."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UserError(f"{folder} is not writable ({error}); pass {option}") from error


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Convert errors from writing a file to :class:`CannotWrite`, whose message names the file."""
    try:
        yield
    except CannotWrite:
        raise
    except OSError as error:
        raise CannotWrite(path, error) from error
    except RuntimeError as error:  # torch 2.15 raises "unexpected pos" if the disk is full
        if isinstance(error.__context__, OSError):
            raise CannotWrite(path, error.__context__) from error
        raise


def write_atomically(
    path: Path,
    content: str | bytes | Callable[[IO[bytes]], object],
    previous: Path | None = None,
) -> None:
    """Write a temporary file, flush it to the disk and rename it.

    Readers never see a partial file. A function ``content`` is called with the open file. If
    ``previous`` is given, the old file is renamed to it first, so for a moment there is no file at
    ``path``. Raises :class:`CannotWrite`.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with writing(path):
        try:
            with open(part, "wb") as file:
                if callable(content):
                    content(file)
                else:
                    file.write(content.encode("utf-8") if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            if previous is not None and path.exists():
                os.replace(path, previous)
            os.replace(part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def write_table(path: Path, columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a CSV file; missing values stay empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue())


class Unreadable(UserError):
    """A file of a run cannot be read; ``reason`` says why, without the file's name."""

    def __init__(self, path: Path, reason: str) -> None:
        self.reason = reason
        super().__init__(f"{path} cannot be read ({reason})")


@contextlib.contextmanager
def prefix_errors(path: Path) -> Iterator[None]:
    """Convert errors in the body, except import errors, to a UserError that names the path."""
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
    """Return ``folder/name``; raise :class:`Unreadable` if a link leads out of the folder."""
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise Unreadable(path, "it is a link that leads out of the folder")
    return path


def read_text(folder: Path, name: str | Path) -> str:
    """Return the UTF-8 text of a file inside the folder."""
    try:
        return inside(folder, name).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise Unreadable(folder / name, f"it is not UTF-8 text ({error})") from error


def read_object(folder: Path, name: str | Path) -> dict[str, Any]:
    """Return the content of a JSON file that holds an object; {} if the file is missing."""
    if not (folder / name).is_file():
        return {}
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
