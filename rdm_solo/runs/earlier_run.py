"""The run that a folder holds already: whether there is one, and how another takes its place."""

import contextlib
import logging
import os
import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from rdm_solo.cli import slurm
from rdm_solo.messages import UserError
from rdm_solo.runs import files, ownership, reading

log = logging.getLogger("rdm_solo")

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
    *("tensorboard/**/events.out.tfevents.*", "tensorboard/**/hparams.yaml"),
)
# Where the files of an earlier run are gathered or removed.
UNFINISHED = f"{files.ASIDE}.part"


def holds_run(folder: Path) -> bool:
    """Whether an epoch has ended there."""
    return any((folder / name).exists() for name in RESULTS)


def has_ended(folder: Path) -> bool:
    """Whether its last epoch is over and its summary written, by which nothing is left to do."""
    try:
        summary = reading.read_object(folder, files.SUMMARY)
    except (OSError, ValueError):
        return False
    return summary.get("stopped") not in files.SIGNALS.values() and not summary.get("diverged")


def remove(folder: Path) -> None:
    """Remove what this package has written there, and no other file; its owner's alone stays."""
    found = _written(folder)
    for path in found:
        with files.writing(path):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    for path in sorted({path.parent for path in found} - {folder}, reverse=True):
        with contextlib.suppress(OSError):
            path.rmdir()  # unless a file of the user's own is there


class SetAside:
    """An earlier run that is set aside while the body runs a new one in its folder.

    Its files are removed once the new run has ended an epoch. Until then they come back where the
    body ends, whatever the reason; ``came_back`` is True then. ``owner`` is what its ``owner.json``
    said.
    """

    def __init__(self, folder: Path, owner: bytes) -> None:
        self.folder, self.owner, self.came_back = folder, owner, False

    def __enter__(self) -> None:
        if holds_run(self.folder):
            _gather(self.folder, self.owner)
        try:
            remove(self.folder)
        except BaseException:
            put_back(self.folder)
            raise

    def __exit__(self, *_: object) -> None:
        forget(self.folder)
        if put_back(self.folder):
            self.came_back = True
            log.info(f"the earlier run in {self.folder} has been put back")


def put_back(folder: Path) -> bool:
    """Give the folder back to the run that was set aside; False where none was.

    What a new run has written is removed. After a kill in the middle, the next call ends it.
    """
    aside = folder / files.ASIDE
    if aside.is_symlink():
        return False
    if found := holds_run(aside):  # nothing else is ever set aside
        owner = b""
        with contextlib.suppress(FileNotFoundError):
            owner = reading.read_bytes(aside, files.OWNER)
        kept = _written(aside)
        for place in {path.relative_to(aside).parent for path in kept}:
            reading.inside(folder, place)
        remove(folder)
        with files.writing(aside):
            _put(kept, aside, folder)
            if owner:  # written in place, since it may be locked
                reading.inside(folder, files.OWNER).write_bytes(owner)
    _drop(folder)
    return found


def unfinished(folder: Path) -> bool:
    """Whether a run was killed before it could put back, or remove, what it had set aside."""
    return any((folder / name).is_dir() for name in (files.ASIDE, UNFINISHED))


def forget(folder: Path) -> None:
    """Remove the run that was set aside, if any, once a new one has ended an epoch."""
    if any((folder / name).exists() for name in (files.METRICS, files.CHECKPOINT)):
        _drop(folder)


def _drop(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.replace(folder / files.ASIDE, folder / UNFINISHED)
    shutil.rmtree(folder / UNFINISHED, ignore_errors=True)


def _gather(folder: Path, owner: bytes) -> None:
    """Give all files of a run a second name below ``ASIDE``, which is whole or absent."""
    part = folder / UNFINISHED
    with files.writing(part):
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        if owner:
            (part / files.OWNER).write_bytes(owner)
        _put(_written(folder), folder, part)
        os.replace(part, folder / files.ASIDE)


def _written(folder: Path) -> list[Path]:
    """What this package has written there, but for ``owner.json``."""
    found = [path for pattern in WRITTEN for path in folder.glob(pattern)]
    inner = [p for p in found if p.parent.resolve().is_relative_to(folder.resolve())]
    return [p for p in inner if not p.is_dir()] + list(folder.glob("wandb"))


def _put(paths: list[Path], source: Path, target: Path) -> None:
    """Give files a second name below another folder."""
    for path in paths:
        new = target / path.relative_to(source)
        new.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():
            new.symlink_to(os.readlink(path))
        elif path.is_dir():
            shutil.copytree(path, new, symlinks=True, copy_function=_second_name)
        else:
            _second_name(path, new)


def _second_name(path: str | Path, new: str | Path) -> None:
    files.add_name(Path(path), Path(new))


@contextlib.contextmanager
def new_folder(wanted: Path) -> Iterator[Path]:
    """A folder that no other run has: the wanted one, or the first free of ``..._2``, ``..._3``.

    Making a folder succeeds for one process alone. It is removed again if it stays empty.

    In a SLURM job, each start of the job leaves an empty file in the folders that it takes. When
    SLURM starts the job again, its first command thus gets the first folder of the earlier start,
    and the same command given a second time the second.
    """
    missing = [path for path in wanted.parents if not path.exists()]
    taken = None if slurm.start() is None else f".slurm_start_{slurm.start()}"
    for number in count(1):
        path = wanted if number == 1 else wanted.with_name(f"{wanted.name}_{number}")
        try:
            with contextlib.suppress(FileNotFoundError):  # another process removed its empty parent
                path.mkdir(parents=True)
                break
            path.mkdir(parents=True)
        except OSError as error:
            if not (isinstance(error, FileExistsError) and error.filename == str(path)):
                raise UserError(
                    f"{error.filename} cannot be made ({error.strerror}); give another "
                    "hydra.run.dir."
                ) from error
            if not (slurm.requeued() and path.is_dir() and _of_this_job(path)):
                continue
            try:
                (path / str(taken)).touch(exist_ok=False)
            except FileExistsError:  # by an earlier command of this start
                continue
            except OSError:  # the run says that nothing can be written there
                pass
        break
    if taken:
        with contextlib.suppress(OSError):
            (path / taken).touch()
    try:
        yield path
    finally:
        with contextlib.suppress(OSError):
            if taken and os.listdir(path) == [taken]:
                (path / taken).unlink()
        for made in (path, *missing):
            with contextlib.suppress(OSError):
                made.rmdir()


def _of_this_job(folder: Path) -> bool:
    """Whether an earlier start of this SLURM job has made the folder, as far as it shows."""
    owner = ownership.last_owner(folder).get("slurm_job")
    return owner == slurm.job() if owner else any(folder.glob(".slurm_start_*"))
