"""The run that a folder holds already: whether there is one, and how its files are removed."""

import contextlib
import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from rdm_solo.runs import files, reading

# What an epoch that has ended leaves; a folder with none of them holds nothing to lose.
RESULTS = (
    *(files.METRICS, files.SUMMARY, files.CHECKPOINT, files.PREVIOUS),
    *(files.SPECTRA, files.OLD_SPECTRA),
)
# All that this package writes into a run's folder.
WRITTEN = (
    *(files.METRICS, files.SUMMARY, files.OLD_SPECTRA, files.FORMAT, files.SKIPPED, files.FAILED),
    *(files.LOGGERS, files.LOG, files.ROLES, files.LINEAR, files.LINEAR_TABLE),
    *(files.CONFIG, files.OVERRIDES, files.HYDRA),
    *(f"{files.SPECTRA}/epoch_*.npz", f"{files.FIGURES}/*.png", f"{files.FIGURES}/*.pdf"),
    *("checkpoints/*.ckpt", "hpc_ckpt_*.ckpt", f"{files.EXPORT}/backbone.*"),
    *("report/*.html", "report/*.png", "report/*.pdf", "report/*.csv", "report/*.tex"),
    "tensorboard/**/events.out.tfevents.*",
)


def holds_run(folder: Path) -> bool:
    """Whether an epoch has ended there."""
    return any((folder / name).exists() for name in RESULTS)


def has_ended(folder: Path) -> bool:
    """Whether its last epoch is over and its summary written, by which nothing is left to do."""
    try:
        summary = reading.read_object(folder, files.SUMMARY)
    except (OSError, ValueError):
        return False
    return summary.get("stopped") not in files.STOPPED_BY_SIGNAL and not summary.get("diverged")


def remove(folder: Path) -> None:
    """Remove what this package has written there, and no other file; its owner's alone stays."""
    found = [path for pattern in WRITTEN for path in folder.glob(pattern)]
    for path in found:
        inner = path.parent.resolve().is_relative_to(folder.resolve())  # no link leads out of it
        if inner and not path.is_dir():
            with files.writing(path):
                path.unlink(missing_ok=True)
    shutil.rmtree(folder / "wandb", ignore_errors=True)
    for path in sorted({path.parent for path in found} - {folder}, reverse=True):
        with contextlib.suppress(OSError):
            path.rmdir()  # unless a file of the user's own is there


@contextlib.contextmanager
def new_folder(wanted: Path) -> Iterator[Path]:
    """A folder that no other run has: the wanted one, or the first free of ``..._2``, ``..._3``.

    Making a folder succeeds for one process alone. It is removed again if it stays empty.
    """
    missing = [path for path in wanted.parents if not path.exists()]
    for number in count(1):
        path = wanted if number == 1 else wanted.with_name(f"{wanted.name}_{number}")
        try:
            with contextlib.suppress(FileNotFoundError):  # another process removed its empty parent
                path.mkdir(parents=True)
                break
            path.mkdir(parents=True)
        except OSError as error:
            if isinstance(error, FileExistsError) and error.filename == str(path):
                continue
            raise ValueError(
                f"{error.filename} cannot be made ({error.strerror}); give another hydra.run.dir."
            ) from error
        break
    try:
        yield path
    finally:
        for made in (path, *missing):
            with contextlib.suppress(OSError):
                made.rmdir()
