"""Trains a run from Python, in a process of its own."""

import contextlib
import os
import queue
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rdm_solo.messages import UserError
from rdm_solo.notebook.options import words
from rdm_solo.notebook.run import Run
from rdm_solo.runs.files import PLANNED
from rdm_solo.train import environment

TO_END = 60  # seconds that a run has to write its summary after an error of the notebook's own
ERROR = "error: "
LAST_LINES = 50  # of a run that failed without such a line, of those that nobody saw


def fit(
    options: Mapping[str, Any] = MappingProxyType({}),
    /,
    *,
    folder: str | os.PathLike[str] | None = None,
    quiet: bool = False,
    **more: Any,
) -> Run:
    """Train a run as ``python -m rdm_solo.train`` does, and read its folder.

    It starts that very command with this Python, in a process of its own: the same defaults, checks
    and folder, the same numbers to the bit, on several devices too (``trainer="ddp"``). The calling
    process keeps its signal handlers, random state, threads and environment. What the run prints
    appears here as it comes, one line an epoch; ``quiet=True`` leaves that out.

    Options are those of the command. One whose name has a dot is given in a dict, by its section as
    a dict, or with ``**``::

        rdm_solo.fit(method="simsiam", filter="target_pow", p=-0.5, seed=1)
        rdm_solo.fit({"optimizer.lr": 0.1, "++trainer.precision": "bf16-mixed"}, max_epochs=50)
        rdm_solo.fit(optimizer={"lr": 0.1}, p={"schedule": "linear", "start": 0, "end": -0.5})
        rdm_solo.fit(resume=run.folder, max_epochs=200)

    A function or data set of your own is named, as on the command line, and lies in a module that
    this Python can import; one that was defined in the notebook itself cannot be named.

    Args:
        options: options by name.
        folder: where the run goes (``hydra.run.dir``); by default a new folder below ``runs/``.
        quiet: print nothing.
        more: further options.

    Returns:
        The run, as its folder has it.

    Raises:
        ValueError: the options cannot be run, in the sentence that the command prints.
        RuntimeError: the run failed after it had begun; ``folder`` of the error is where it lies.
        KeyboardInterrupt: after Ctrl-C, or a notebook's stop button. The run has stopped cleanly,
            and its folder says so; a second Ctrl-C ends it at once. In a thread other than the main
            one Python delivers no Ctrl-C. If this process is killed, the run stops cleanly.
    """
    given = {**options, **more}
    if folder is not None:
        given["hydra.run.dir"] = folder
    typed = words(given)
    _refuse_sweeps(given)
    with tempfile.TemporaryDirectory(prefix="rdm_solo_") as scratch:
        told = Path(scratch) / "folder"
        with _started(typed, told) as child:
            error, last = _shown(child, quiet)
        begun = Path(told.read_text("utf-8")) if told.exists() else None
    status = child.returncode
    if status == 0 and begun:
        return Run(begun)
    if status == 2 and error and not begun:
        raise UserError(error)
    command = shlex.join(["python", "-m", "rdm_solo.train", *typed])
    why = f"it said last:\n{last}" if quiet and last else "its output says why."
    raise RunFailed(error or f"{command} ended with status {status}; {why}", begun)


class RunFailed(RuntimeError):
    """A run that failed; ``folder`` is where it lies, or None where it had not begun."""

    def __init__(self, reason: str, folder: Path | None) -> None:
        super().__init__(reason)
        self.folder = folder


def _refuse_sweeps(given: Mapping[str, Any]) -> None:
    """A sweep has no one run to return."""
    resume = given.get("resume")
    if isinstance(resume, (str, os.PathLike)) and (Path(resume) / PLANNED).is_dir():
        raise UserError(
            f"resume={resume} is the folder of a sweep; what is left of it is run by "
            f"{shlex.join(['python', '-m', 'rdm_solo.train', f'resume={resume}'])}"
        )


@contextlib.contextmanager
def _started(typed: list[str], told: Path) -> Iterator["subprocess.Popen[str]"]:
    """The command while the body runs; what is left of its processes ends with it."""
    child = subprocess.Popen(
        [sys.executable, "-m", "rdm_solo.train", *typed],
        env={
            **os.environ,
            environment.PARENT: str(os.getpid()),
            environment.TELL: str(told),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "PYTHONUNBUFFERED": "1",
            "PYTHONIOENCODING": "utf-8",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,  # Ctrl-C reaches this process, which passes it on
    )
    try:
        yield child
    finally:
        if child.poll() is None:
            child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(TO_END)
        if hasattr(os, "killpg"):
            with contextlib.suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL)
        child.kill()
        child.wait()


def _shown(child: "subprocess.Popen[str]", quiet: bool) -> tuple[str, str]:
    """Print what the command prints until it ends; the sentence with which it fails, if any, and
    the last lines.

    KeyboardInterrupt is passed on, and raised again when the command has ended.
    """
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_read, args=(child, lines), daemon=True).start()
    error: list[str] = []
    last: deque[str] = deque(maxlen=LAST_LINES)
    stopped: KeyboardInterrupt | None = None
    while True:
        try:
            line = _next(child, lines)
            if line is None:
                break
            if line.startswith(ERROR):
                error = []
            if error or line.startswith(ERROR):
                error.append(line)  # not printed: it becomes the exception's text
                continue
            last.append(line)
            if not quiet:
                sys.stdout.write(line)
                sys.stdout.flush()
        except KeyboardInterrupt as interrupt:
            stopped = interrupt
            with contextlib.suppress(OSError, ValueError):  # Windows sends it by itself
                child.send_signal(signal.SIGINT)
    if stopped:
        raise stopped
    return "".join(error).removeprefix(ERROR).strip(), "".join(last).strip()


def _read(child: "subprocess.Popen[str]", lines: "queue.Queue[str | None]") -> None:
    for line in child.stdout or ():
        lines.put(line)
    lines.put(None)


def _next(child: "subprocess.Popen[str]", lines: "queue.Queue[str | None]") -> str | None:
    """The next line; None where the command has ended, even if a process that it has left behind
    holds its output open."""
    while True:
        with contextlib.suppress(queue.Empty):
            return lines.get(timeout=0.2)
        if child.poll() is not None and lines.empty():
            return None
