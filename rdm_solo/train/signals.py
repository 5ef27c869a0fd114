"""SIGINT (Ctrl-C) and SIGTERM end a run in order, with status 130 or 143; USR1 requeues a job.

Files are whole at any moment. Ending in order adds a sentence, the summary of what there is, and
the command that continues the run.
"""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType

from rdm_solo.cli import slurm
from rdm_solo.runs.files import AT_ONCE_AFTER, SIGNALS


def name(number: int) -> str:
    """The signal's name, with its likely cause where there is one.

    >>> name(9)
    'SIGKILL (perhaps the machine ran out of memory)'
    """
    try:
        found = signal.Signals(number).name
    except ValueError:
        found = f"signal {number}"
    return f"{found} (perhaps the machine ran out of memory)" if found == "SIGKILL" else found


class Stopped(KeyboardInterrupt):
    """A signal asks the command to end; ``told`` where the user knows already what is written."""

    def __init__(self, number: int = signal.SIGINT, told: bool = False) -> None:
        super().__init__(SIGNALS[signal.Signals(number)])
        self.number, self.told = number, told

    @property
    def status(self) -> int:
        """Of the process, as shells count one that a signal ended."""
        return 128 + self.number


class _Handler:
    """What this process does about signals, between the first one and the end."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.since = 0.0
        self.waiting = False  # files of a run that has ended are being written

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received, self.since = number, time.monotonic()
            if not self.waiting:
                raise Stopped(number)
        elif time.monotonic() - self.since > AT_ONCE_AFTER:
            word = SIGNALS[signal.Signals(number)]
            os.write(
                2,
                f"error: {word} again: no summary; the epochs that ended are saved\n".encode(),
            )
            os._exit(128 + number)


_current: _Handler | None = None


@contextlib.contextmanager
def handled() -> Iterator[None]:
    """Answer signals in the body by :class:`Stopped`; those that were ignored stay ignored."""
    global _current
    if _current is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    _current = _Handler()
    before = {number: signal.getsignal(number) for number in SIGNALS}
    if slurm.job() and hasattr(signal, "SIGUSR1"):
        before[signal.SIGUSR1] = signal.getsignal(signal.SIGUSR1)
        if before[signal.SIGUSR1] is signal.SIG_DFL:
            signal.signal(signal.SIGUSR1, _requeue)
    try:
        take_back()
        yield
    finally:
        _current = None
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def end_with(parent: str | None) -> None:
    """End this process in order, as on SIGTERM, once the process of that number is gone.

    A launcher that was killed cannot end what it has started.
    """
    if parent is None or os.name == "nt":  # where the parent may be a program between
        return

    def watch() -> None:
        while os.getppid() == int(parent):
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True, name="rdm_solo-parent").start()


def take_back() -> None:
    """Answer the signals again, after Lightning has put its own handlers in place."""
    for number in SIGNALS:
        if _current is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _current)


def check() -> None:
    """Raise what was raised before, where a library has caught it."""
    if (number := came()) is not None:
        raise Stopped(number)


def take(number: int) -> None:
    """Take a signal that another process of the run has got for one of this process."""
    if _current is not None and _current.received is None:
        _current.received, _current.since = number, time.monotonic()


def came() -> int | None:
    """The signal that this process got, or :func:`take` took; None where there was none."""
    return _current.received if _current is not None else None


def received() -> int:
    """The signal that ended training; SIGINT for a KeyboardInterrupt of Python's own."""
    return came() or signal.SIGINT


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Let the body end before a signal is answered: it writes files and takes moments."""
    if _current is None:
        yield
        return
    _current.waiting = True
    try:
        yield
    finally:
        _current.waiting = False


def _in_worker() -> bool:
    """Whether this process loads images for a run: SLURM sends a signal to these, too."""
    return multiprocessing.parent_process() is not None


def _requeue(number: int, frame: FrameType | None) -> None:
    """SLURM's warning that the time is nearly over, where ``--signal=USR1@90`` asks for it.

    Lightning's own answer saves a checkpoint in the middle of an epoch, from which a run does not
    repeat the uninterrupted one; this one goes on from the last epoch's.
    """
    if os.environ.get("SLURM_PROCID", "0") != "0" or _in_worker():
        return
    command = ["scontrol", "requeue", str(slurm.job())]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        why = done.stderr.strip() if done.returncode else ""
    except (OSError, subprocess.SubprocessError) as error:
        why = str(error)
    text = f"SLURM will start job {slurm.job()} again; it goes on after the last epoch that ended"
    sys.stdout.write(f"USR1: {f'the job cannot be requeued ({why})' if why else text}\n")
    sys.stdout.flush()
