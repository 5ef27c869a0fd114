"""Names of the files in a run's folder, and how a file is written."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO

CONFIG = ".hydra/config.yaml"
OVERRIDES = ".hydra/overrides.yaml"
METRICS = "metrics.csv"  # one row an epoch
SPECTRA = "spectra"  # a folder: eigenvalues and curves, a file for each measured epoch
OLD_SPECTRA = "spectra.npz"  # of format 1: those of all epochs in one file
FORMAT = "format.json"  # number of the folder's format, written when training starts
CHECKPOINT = "checkpoints/last.ckpt"
SUMMARY = "summary.json"  # written when the run ends
SKIPPED = "skipped.txt"  # images that dataset.skip_broken=true left out
FAILED = "failed.txt"  # why the run failed, in one line
LOGGERS = "loggers.json"  # how to find the run's loggers again
FIGURES = "figures"
LINEAR = "linear.json"  # linear evaluations, and each one's epochs:
LINEAR_TABLE = "linear.csv"
ROLES = "roles.json"
EXPORT = "export"


def write_whole(path: Path, content: str | bytes | Callable[[IO[bytes]], object]) -> None:
    """Write a file beside its name, flush it to the disk and rename it.

    Whoever reads meanwhile, or after a power cut, finds the old file or the new one. A function
    as ``content`` writes into the open file itself.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
            if callable(content):
                content(file)
            else:
                file.write(content.encode("utf-8") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
