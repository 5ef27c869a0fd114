"""Runs of a sweep in processes of their own, as many at once as there are shares of the machine."""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rdm_solo.runs import failures, ownership
from rdm_solo.runs.files import SIGNALS
from rdm_solo.train import environment, signals
from rdm_solo.train.launchers.board import Board
from rdm_solo.train.launchers.devices import Share
from rdm_solo.train.launchers.plan import Job
from rdm_solo.train.launchers.warm import Forked, Warm

LAST_LINES = 40  # of a run that ends without a reason
TO_END = 60  # seconds that a run has to write its summary


@dataclass
class _Process:
    job: Job
    share: Share
    row: int
    process: "subprocess.Popen[str] | Forked"
    reason_before: tuple[int, int] | None  # the mark of a reason that an earlier start has left
    began: float = field(default_factory=time.monotonic)
    last: "deque[str]" = field(default_factory=lambda: deque(maxlen=LAST_LINES))
    reader: threading.Thread | None = None

    @property
    def name(self) -> str:
        return self.job.name


def run(jobs: Sequence[Job], folder: Path, shares: Sequence[Share]) -> dict[Path, str]:
    """Run each job of the sweep in that folder in the next share that is free.

    Returns, by folder, the reason of each failed run that left none in its folder.

    A run that fails does not stop the others. A signal is passed on to all of them, and answered
    once they have ended.
    """
    return _Runs(jobs, folder, shares).all()


class _Runs:
    """The runs that wait, those that go on, and what became of the others."""

    def __init__(self, jobs: Sequence[Job], folder: Path, shares: Sequence[Share]) -> None:
        self.folder = folder
        self.waiting, self.free = deque(jobs), deque(enumerate(shares))
        self.going_on: list[_Process] = []
        self.lines: queue.Queue[tuple[_Process, str]] = queue.Queue()
        self.reasons: dict[Path, str] = {}
        self.board = Board([job.name for job in jobs], len(shares))
        self.warm: Warm | None = None

    def all(self) -> dict[Path, str]:
        try:
            self._warm_up()
            while self.waiting or self.going_on:
                self._step()
        except KeyboardInterrupt as stopped:
            number = signals.came() or signal.SIGINT
            word = SIGNALS[signal.Signals(number)]
            self.board.write(f"{word}: stopping {len(self.going_on)} runs")
            self.waiting.clear()
            with signals.waiting():
                self._pass_on(number)
            raise signals.Stopped(number, told=True) from stopped
        finally:
            for process in self.going_on:  # after an error of our own
                process.process.terminate()
            for process in self.going_on:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.process.wait(TO_END)
                _end(process)
            if self.warm:
                self.warm.close()
            self.board.close()
        return self.reasons

    def _warm_up(self) -> None:
        """Let the runs on the CPU be forked, where the system has a way that is safe."""
        may = sys.platform == "linux" and all(share.cores for _, share in self.free)
        if may and any(_may_be_forked(job) for job in self.waiting):
            _, smallest = min(self.free, key=lambda row: row[1].threads or 0)
            variables = {**smallest.variables(), environment.SWEEP: str(self.folder.absolute())}
            with contextlib.suppress(OSError):  # no process is free
                self.warm = Warm(variables)
            if self.warm and not self.warm.ready(signals.check):  # the runs will say why
                self.warm.close()
                self.warm = None

    def _step(self) -> None:
        while self.waiting and self.free:
            job, (row, share) = self.waiting.popleft(), self.free.popleft()
            try:
                with signals.waiting():  # a process that was started is known
                    self._start(job, row, share)
            except OSError as error:
                self.reasons[job.folder] = f"the run cannot be started ({error.strerror})"
                self.board.ended(row)
                self.free.append((row, share))
            signals.check()
        with contextlib.suppress(queue.Empty):
            self._show(*self.lines.get(timeout=0.1))
        self._show_all()
        for process in [p for p in self.going_on if p.process.poll() is not None]:
            self._finish(process)

    def _start(self, job: Job, row: int, share: Share) -> None:
        self.board.show(row, job.name, "starts")
        variables = share.variables() | job.variables(self.folder)
        before = failures.mark(job.folder)
        started = _Process(job, share, row, self._process(job, variables, share), before)
        started.reader = threading.Thread(target=self._read, args=(started,), daemon=True)
        started.reader.start()
        self.going_on.append(started)

    def _process(
        self, job: Job, variables: dict[str, str], share: Share
    ) -> "subprocess.Popen[str] | Forked":
        if self.warm and _may_be_forked(job):
            try:
                return self.warm.start(job.options, variables, share.cores)
            except OSError:
                if not self.warm.has_ended:
                    raise
        return _fresh(job, variables, share)

    def _read(self, process: _Process) -> None:
        for line in process.process.stdout or ():
            self.lines.put((process, line.rstrip("\n")))

    def _show(self, process: _Process, line: str) -> None:
        process.last.append(line)
        self.board.show_line(process.row, process.name, line)

    def _show_all(self) -> None:
        for _ in range(self.lines.qsize()):
            self._show(*self.lines.get_nowait())

    def _finish(self, process: _Process) -> None:
        """Take note of a run that has ended, and give its share to the next."""
        _end(process)
        if process.reader:
            process.reader.join(timeout=5)
        self.going_on.remove(process)
        self._show_all()
        status, folder = process.process.returncode, process.job.folder
        stopped = any(status in (-number, 128 + number) for number in SIGNALS)
        if status and not (stopped and signals.came()):
            self._take_reason(process, folder, status)
        word = "stopped" if stopped else "failed" if status else "ended"
        self.board.tell(process.name, f"{word} after {time.monotonic() - process.began:.0f} s")
        self.board.ended(process.row)
        self.free.append((process.row, process.share))

    def _take_reason(self, process: _Process, folder: Path, status: int) -> None:
        """Why a run has failed, where its folder does not say so."""
        if failures.mark(folder) not in (None, process.reason_before):
            return
        errors = [line for line in process.last if line.startswith("error: ")]
        if status > 0 and errors:
            self.reasons[folder] = errors[-1].removeprefix("error: ")
            return
        for line in process.last:
            self.board.tell(process.name, line)
        if status < 0:
            reason = f"the run was ended by {signals.name(-status)}"
        else:
            reason = f"the run ended with status {status}"
        owner = ownership.last_owner(folder).get("process")
        if owner != process.process.pid or failures.note(folder, reason):
            self.reasons[folder] = reason

    def _pass_on(self, number: int) -> None:
        """Ask the runs to end, show what they say, and wait until they have."""
        for process in self.going_on:
            with contextlib.suppress(OSError, ValueError):  # Windows has no such signal
                process.process.send_signal(number)
        while self.going_on:
            self._step()


def _may_be_forked(job: Job) -> bool:
    """Not a run with variables of its own, which libraries may read when they are imported."""
    return job.hydra is None or not job.hydra.hydra.job.env_set


def _fresh(job: Job, variables: dict[str, str], share: Share) -> "subprocess.Popen[str]":
    """A run's process that imports everything by itself."""
    with _on_cores(share.cores):
        return subprocess.Popen(
            [sys.executable, "-m", "rdm_solo.train", *job.options],
            env={
                **os.environ,
                **variables,
                environment.PARENT: str(os.getpid()),
                "PYTHONUNBUFFERED": "1",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # Ctrl-C reaches this process, which passes it on
        )


def _end(process: _Process) -> None:
    """End what is left of a run's processes, such as workers that load images."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(OSError):
            os.killpg(process.process.pid, signal.SIGKILL)
    else:
        process.process.kill()
    process.process.wait()


@contextlib.contextmanager
def _on_cores(cores: Sequence[int]) -> Iterator[None]:
    """Let what the body starts run on these cores alone; none: wherever this process may."""
    if not cores or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
