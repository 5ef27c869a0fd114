"""Names of the files in a run's folder, and how a file is written."""

import contextlib
import csv
import io
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import IO, Any

from rdm_solo.messages import CannotWrite

CONFIG = ".hydra/config.yaml"
OVERRIDES = ".hydra/overrides.yaml"
HYDRA = ".hydra/hydra.yaml"
LOG = "train.log"
METRICS = "metrics.csv"  # one row an epoch
SPECTRA = "spectra"  # a folder: eigenvalues and curves, a file for each measured epoch
OLD_SPECTRA = "spectra.npz"  # of format 1: those of all epochs in one file
FORMAT = "format.json"  # number of the folder's format, written when training starts
CHECKPOINT = "checkpoints/last.ckpt"
PREVIOUS = "checkpoints/previous.ckpt"  # the one before it, for when that cannot be read
BEST = "checkpoints/best.ckpt"  # of the epoch with the highest kNN accuracy, where asked for
SUMMARY = "summary.json"  # written when the run ends
SKIPPED = "skipped.txt"  # images that dataset.skip_broken=true left out
# The signals that end a run in order, and what `stopped` there says of such a run.
SIGNALS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
PLANNED = ".jobs"  # in a sweep's folder: the config of each of its runs, from before they began
FAILED = "failed.txt"  # why the run failed, in one line
OWNER = "owner.json"  # who writes here, or did last; locked while it does
ASIDE = ".earlier_run"  # a folder: the run that was here, until the new one has ended an epoch
LOGGERS = "loggers.json"  # how to find the run's loggers again
FIGURES = "figures"
LINEAR = "linear.json"  # linear evaluations, and each one's epochs:
LINEAR_TABLE = "linear.csv"
ROLES = "roles.json"
EXPORT = "export"

# Launchers send a signal twice within these seconds; after them, a second one ends the process.
AT_ONCE_AFTER = 2.0


def is_aside(folder: Path) -> bool:
    """Whether an earlier run is kept there, or was being gathered, until the new one has begun."""
    return folder.name.startswith(ASIDE)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Name the file in the error where the system lets nothing be written."""
    try:
        yield
    except CannotWrite:
        raise
    except OSError as error:
        raise CannotWrite(path, error) from error


def write_whole(
    path: Path,
    content: str | bytes | Callable[[IO[bytes]], object],
    earlier: Path | None = None,
) -> None:
    """Write a file beside its name, flush it to the disk and rename it.

    Whoever reads meanwhile, or after a power cut, finds the old file or the new one. A function
    as ``content`` writes into the open file itself. The file that had the name so far gets the
    name ``earlier``, if one is given. Raises :class:`CannotWrite`.
    """
    part = _part(path)
    with writing(path):
        try:
            part.unlink(missing_ok=True)  # a link of that name would lead elsewhere
            with open(part, "xb") as file:
                if callable(content):
                    _let_write(content, file)
                else:
                    file.write(content.encode("utf-8") if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            if earlier is not None and path.exists():
                try:
                    _link(path, earlier)
                except OSError:  # a file system without hard links
                    os.replace(path, earlier)
            os.replace(part, path)
            _flush_folder(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink()
            raise


def _let_write(content: Callable[[IO[bytes]], object], file: IO[bytes]) -> None:
    try:
        with _signals_afterwards():
            content(file)
    except RuntimeError as error:  # torch 2.15 says "unexpected pos" where the disk is full
        if isinstance(error.__context__, OSError):
            raise error.__context__ from error
        raise


@contextlib.contextmanager
def _signals_afterwards() -> Iterator[None]:
    """Answer a signal once the body is over: inside torch.save, its exception would become an
    error of torch's."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: dict[int, float] = {}

    def wait(number: int, frame: FrameType | None) -> None:
        if came and time.monotonic() - min(came.values()) > AT_ONCE_AFTER:
            os._exit(128 + number)
        came.setdefault(number, time.monotonic())

    answers = {number: signal.getsignal(number) for number in SIGNALS}
    answers = {number: answer for number, answer in answers.items() if callable(answer)}
    for number in answers:
        signal.signal(number, wait)
    try:
        yield
    finally:
        for number, answer in answers.items():
            signal.signal(number, answer)
        for sent in came:
            signal.raise_signal(sent)


def write_table(path: Path, columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a CSV with a line for each row; what a row lacks stays empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, text.getvalue())


def write_first(path: Path, content: bytes) -> bool:
    """Write a whole file unless one of that name is there; False where it is."""
    part = _part(path)
    write_whole(part, content)
    try:
        os.link(part, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        if path.exists():
            return False
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return True


def add_name(path: Path, name: Path) -> None:
    """Give a file a second name; on a file system without hard links, copy it."""
    with writing(name):
        try:
            _link(path, name)
        except OSError:
            with open(path, "rb") as file:
                write_whole(name, lambda copy: shutil.copyfileobj(file, copy))


def remove_parts(folder: Path) -> None:
    """Remove what a run that was killed has left half written in its folder.

    Commands that read the folder may be writing there now: their files are left alone.
    """
    own = (METRICS, SUMMARY, FORMAT, "checkpoints/*", f"{SPECTRA}/*", f"{FIGURES}/*")
    for name in own:
        place, _, last = name.rpartition("/")
        for path in (folder / place).glob(f".{last}.*.part"):
            with contextlib.suppress(OSError):
                path.unlink()


def _part(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.part")


def _link(path: Path, name: Path) -> None:
    part = _part(name)
    part.unlink(missing_ok=True)
    try:
        os.link(path, part)
        os.replace(part, name)
    finally:
        part.unlink(missing_ok=True)  # it stays where both are names of one file


def _flush_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # Windows opens no folders, and some disks flush none
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
