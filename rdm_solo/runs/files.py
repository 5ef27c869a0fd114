"""Names of the files in a run's folder, and how a file is written."""

import contextlib
import csv
import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from rdm_solo.messages import CannotWrite

CONFIG = ".hydra/config.yaml"  # every option with its value
OVERRIDES = ".hydra/overrides.yaml"  # the options that were passed
SWEEP = "multirun.yaml"  # in a sweep's folder, by Hydra: the options of the sweep
LOG = "train.log"
METRICS = "metrics.csv"  # one row per epoch
SPECTRA = "spectra"  # a folder: eigenvalues and curves, one file per measured epoch
CHECKPOINT = "checkpoints/last.ckpt"
PREVIOUS = "checkpoints/previous.ckpt"  # its predecessor, for when it cannot be read
BEST = "checkpoints/best.ckpt"  # of the epoch with the highest kNN accuracy, if asked for
SUMMARY = "summary.json"  # written when the run ends
SKIPPED = "skipped.txt"  # images that dataset.skip_broken=true left out
FAILED = "failed.txt"  # why the run failed, in one line
OWNER = "owner.json"  # the process that writes here, or did last
LOCK = ".lock"  # locked while the run's process lives
LOGGERS = "loggers.json"  # ids by which a resumed run continues its loggers
FIGURES = "figures"
LINEAR = "linear.json"  # linear evaluations
LINEAR_TABLE = "linear.csv"  # and the epochs of each
EXPORT = "export"


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Name the file in the error if the system refuses to write it."""
    try:
        yield
    except CannotWrite:
        raise
    except OSError as error:
        raise CannotWrite(path, error) from error


def write_whole(
    path: Path,
    content: str | bytes | Callable[[IO[bytes]], object],
    previous: Path | None = None,
) -> None:
    """Write a file beside its name, flush it to the disk and rename it.

    A reader finds the old file or the new one, also after a power cut. A function as ``content``
    writes into the open file itself. The old file is renamed to ``previous`` if that is given.
    Raises :class:`CannotWrite`.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with writing(path):
        try:
            with open(part, "wb") as file:
                if callable(content):
                    _call(content, file)
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


def _call(write: Callable[[IO[bytes]], object], file: IO[bytes]) -> None:
    try:
        write(file)
    except RuntimeError as error:  # torch 2.15 raises "unexpected pos" if the disk is full
        if isinstance(error.__context__, OSError):
            raise error.__context__ from error
        raise


def write_table(path: Path, columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a CSV with one line per row; a missing value stays empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, text.getvalue())
