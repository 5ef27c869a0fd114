"""A run's folder belongs to one process at a time, until the run ends.

The system drops the lock when the process ends in any way, ``kill -9`` included.
"""

import contextlib
import datetime
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from rdm_solo.messages import UserError
from rdm_solo.runs import reading
from rdm_solo.runs.files import LOCK, OWNER, write_whole, writing


class FolderTaken(UserError):
    """The folder is another run's, so nothing may be written there."""


@contextlib.contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Own the folder while the body runs; :class:`FolderTaken` if another process does.

    The folder must exist. A link in it that leads out is refused, for whatever the run writes.
    """
    refuse_links(folder)
    lock = FileLock(folder / LOCK, timeout=0)
    with writing(folder / LOCK):
        try:
            lock.acquire()
        except Timeout:
            raise FolderTaken(
                f"another run is writing to {folder}{_described(last_owner(folder))}: wait until "
                "it ends, or give another hydra.run.dir."
            ) from None
    try:
        yield
    finally:
        lock.release()


def refuse_links(folder: Path) -> None:
    """Raise UserError if a link in the folder leads out of it: a run would write through it."""
    for path in folder.rglob("*"):
        if path.is_symlink() and path.name != "debug-core.log":  # W&B's, to the user's cache
            reading.inside(folder, path.relative_to(folder))


def sign(folder: Path, **facts: Any) -> None:
    """Write to ``owner.json`` who owns the folder, with more facts about this start."""
    owner = {
        "host": socket.gethostname(),
        "process": os.getpid(),
        "slurm_job": os.environ.get("SLURM_JOB_ID"),
        "since": datetime.datetime.now().isoformat(" ", "seconds"),
        **facts,
    }
    write_whole(folder / OWNER, json.dumps(owner) + "\n")


def last_owner(folder: Path) -> dict[str, Any]:
    """Return what ``owner.json`` says; an empty dict without it."""
    try:
        return reading.read_object(folder, OWNER)
    except (OSError, ValueError):
        return {}


def _described(owner: dict[str, Any]) -> str:
    """Return who owns a folder, in brackets."""
    words = {"process": "process", "host": "on", "slurm_job": "SLURM job", "since": "since"}
    text = ", ".join(f"{word} {owner[name]}" for name, word in words.items() if owner.get(name))
    return f" ({text})" if text.isprintable() and text else ""
