"""Lock a run's folder, and record the process that owns it and why it failed.

The operating system releases the lock when the process ends, even after ``kill -9``.
"""

import contextlib
import datetime
import json
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from rdm_solo.ground.errors import UserError, first_line
from rdm_solo.runs import files
from rdm_solo.runs.files import FAILED, LOCK, OWNER, write_atomically, writing

log = logging.getLogger("rdm_solo")


class FolderTaken(UserError):
    """Another run owns the folder, so nothing may be written there."""


@contextlib.contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Lock the folder in the body; raise :class:`FolderTaken` if another process holds the lock.

    The folder must exist. Links that lead out of it are refused.
    """
    refuse_links(folder)
    lock = FileLock(folder / LOCK, timeout=0)
    with writing(folder / LOCK):
        try:
            lock.acquire()
        except Timeout:
            owner = last_owner(folder)
            facts = ("process", "host", "slurm_job", "since")
            who = ", ".join(f"{name} {owner[name]}" for name in facts if owner.get(name))
            raise FolderTaken(
                f"another run is writing to {folder} ({who}): wait until it finishes, or "
                "set another hydra.run.dir."
            ) from None
    try:
        yield
    finally:
        lock.release()


def set_aside(folder: Path) -> None:
    """Rename a run's folder to NAME.old-TIME; raise :class:`FolderTaken` if the run is active."""
    time = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    with owned(folder), writing(folder):
        old = folder.rename(f"{folder}.old-{time}")
    log.info(f"the earlier run was moved to {old}")


def refuse_links(folder: Path) -> None:
    """Raise UserError if a link leads out of the folder, because a run would write through it."""
    for path in folder.rglob("*"):
        if path.is_symlink() and path.name != "debug-core.log":  # W&B links to the user's cache
            files.inside(folder, path.relative_to(folder))


def write_owner(folder: Path, **facts: Any) -> None:
    """Write ``owner.json``: this process, and the given facts about this start."""
    owner = {
        "host": socket.gethostname(),
        "process": os.getpid(),
        "slurm_job": os.environ.get("SLURM_JOB_ID"),
        "since": datetime.datetime.now().isoformat(" ", "seconds"),
        **facts,
    }
    write_atomically(folder / OWNER, json.dumps(owner) + "\n")


def last_owner(folder: Path) -> dict[str, Any]:
    """Return the content of ``owner.json``; {} if it is missing."""
    try:
        return files.read_object(folder, OWNER)
    except (OSError, ValueError):
        return {}


@contextlib.contextmanager
def recording_failure(folder: Path) -> Iterator[None]:
    """Write the first line of an error in the body to ``failed.txt``, and re-raise the error."""
    (folder / FAILED).unlink(missing_ok=True)
    try:
        yield
    except Exception as error:
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        record_failure(folder, f"{kind}{first_line(error)}")
        raise


def record_failure(folder: Path, reason: str) -> None:
    """Write the reason for a failure to ``failed.txt``, unless another process already did."""
    with contextlib.suppress(OSError), open(folder / FAILED, "x", encoding="utf-8") as file:
        file.write(f"{reason}\n")


def failure(folder: Path) -> str | None:
    """Return why the run failed; None if it did not."""
    try:
        text = files.read_text(folder, FAILED)
    except (OSError, ValueError):
        return None
    # Control characters in a stranger's file could control the terminal.
    return "".join(char if char.isprintable() else " " for char in text).strip() or None
