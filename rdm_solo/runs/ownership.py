"""A run's folder belongs to one process at a time, from before it is written until the run ends.

The owner holds a lock on ``owner.json``, which says who it is. The system drops the lock when the
process ends in any way, ``kill -9`` included; the file stays, and says who wrote the folder last.
"""

import contextlib
import datetime
import errno
import json
import logging
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rdm_solo.cli import slurm
from rdm_solo.messages import UserError
from rdm_solo.runs import reading
from rdm_solo.runs.files import OWNER

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger("rdm_solo")

# What the system answers where a file system (or its server) has no locks.
NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)
NO_LINK = getattr(os, "O_NOFOLLOW", 0)  # which would lead the write out of the folder
_held: set[int] = set()  # open lock files


class FolderTaken(UserError):
    """The folder is another run's, so that nothing may be written there."""


def _close_in_child() -> None:
    """A forked process must not keep the lock alive when its parent is killed."""
    for number in _held:
        os.close(number)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


@contextlib.contextmanager
def owned(folder: Path, **more: Any) -> Iterator[bytes]:
    """Own the folder while the body runs; ValueError, in a sentence, where another process does.

    The folder is made, and removed again where the body has written nothing into it. ``more`` is
    kept in ``owner.json``; the body gets what that file said before.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    number = None
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            number = _locked(folder)
            about = {
                "host": socket.gethostname(),
                "process": os.getpid(),
                "slurm_job": slurm.job(),
                "since": datetime.datetime.now().isoformat(" ", "seconds"),
                **more,
            }
            before = os.read(number, reading.MOST_JSON)
            os.lseek(number, 0, os.SEEK_SET)
            # One write into the locked file: another file of that name would have no lock.
            written = os.write(number, (json.dumps(about) + "\n").encode())
            os.ftruncate(number, written)
        except OSError as error:
            place = error.filename or folder
            raise UserError(
                f"{place} cannot be written ({error.strerror}); give another hydra.run.dir."
            ) from error
        yield before
    finally:
        if number is not None:
            with contextlib.suppress(OSError):
                if os.listdir(folder) == [OWNER]:
                    (folder / OWNER).unlink()
            _held.discard(number)
            os.close(number)
        for path in missing:
            with contextlib.suppress(OSError):
                path.rmdir()  # which is empty where nothing was written


def check_free(folder: Path) -> None:
    """Refuse a folder that another process owns; nothing is changed there."""
    try:
        number = os.open(folder / OWNER, os.O_RDWR)
    except OSError:  # nobody has written there, or this process may not
        return
    try:
        _lock(number, folder)
    finally:
        os.close(number)


def last_owner(folder: Path) -> dict[str, Any]:
    """Who wrote the folder last, as :func:`owned` has it; empty where that is not known."""
    try:
        return reading.read_object(folder, OWNER)
    except (OSError, ValueError):
        return {}


def _locked(folder: Path) -> int:
    """An open, locked ``owner.json``; the lock ends when it is closed."""
    path = folder / OWNER
    while True:
        number = os.open(path, os.O_RDWR | os.O_CREAT | NO_LINK, 0o666)
        try:
            if not stat.S_ISREG(os.fstat(number).st_mode):  # reading a pipe would wait
                raise UserError(f"{path} is not a regular file; give another hydra.run.dir.")
            has_locks = _lock(number, folder)
            if path.exists() and os.path.samestat(os.fstat(number), path.stat()):
                break
        except BaseException:
            os.close(number)
            raise
        os.close(number)  # its owner has removed the file meanwhile
    if not has_locks:
        log.warning(
            f"warning: the file system of {folder} has no locks; see to it that no other run "
            "writes there."
        )
    _held.add(number)
    return number


def _lock(number: int, folder: Path) -> bool:
    """Lock an open file; False where the system cannot, ValueError where another has done so."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        owner = last_owner(folder)
        if (owner.get("process"), owner.get("host")) == (os.getpid(), socket.gethostname()):
            raise FolderTaken(
                f"this process itself is writing to {folder}: close what does, or give another "
                "hydra.run.dir."
            ) from None
        raise FolderTaken(
            f"another run is writing to {folder}{_described(owner)}: wait until it ends, or give "
            "another hydra.run.dir."
        ) from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return False
    return True


def _described(owner: dict[str, Any]) -> str:
    """The words in brackets on an owner; a folder may come from a stranger."""
    words = {"process": "process", "host": "on", "slurm_job": "SLURM job", "since": "since"}
    known = [f"{word} {owner[name]}" for name, word in words.items() if owner.get(name)]
    plain = "".join(sign for sign in ", ".join(known) if sign.isprintable())[:200]
    return f" ({plain})" if plain else ""
