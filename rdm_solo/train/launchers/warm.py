"""Starts a sweep's runs without the seconds that their imports take: each is forked from a process
that has made them.

This is for runs on the CPU. A process must not be forked once it has asked for GPUs.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

from rdm_solo.train.environment import PARENT, THREADS

IMPORTED = (
    *("rdm_solo.train.entry", "rdm_solo.train.checks", "rdm_solo.train.datamodule"),
    *("rdm_solo.train.trainer", "rdm_solo.train.closing", "rdm_solo.methods.models"),
    *("rdm_solo.loggers.run_logger", "rdm_solo.callbacks.pictures", "sklearn.datasets"),
)
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
MOST = 2**16  # bytes of a message that are read at once
INTERVAL = 0.1  # seconds between two looks at what has ended


class Warm:
    """The process of which runs are forked. It ends with the process that made it."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._channel, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                env={**os.environ, **variables},
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._unread = b""
        self._ready = False
        self.has_ended = False
        self._number: int | None = None  # of the process that it started last
        self._refused = 0  # why it could not start one: the system's number of an error
        self._statuses: dict[int, int] = {}

    def ready(self, check: Callable[[], None]) -> bool:
        """Wait until everything is imported, calling ``check()`` meanwhile; False where that has
        failed."""
        while not (self._ready or self.has_ended):
            check()
            self._listen(INTERVAL)
        return self._ready

    def start(
        self, options: Sequence[str], variables: Mapping[str, str], cores: Sequence[int]
    ) -> Forked:
        """A run with these options; ``OSError`` where there is no process for it."""
        reader, writer = os.pipe()
        self._number, self._refused = None, 0
        try:
            words = {"options": [*options], "variables": {**variables}, "cores": [*cores]}
            socket.send_fds(self._channel, [json.dumps(words).encode() + b"\n"], [writer])
            while self._number is None:
                if self._refused:
                    raise OSError(self._refused, os.strerror(self._refused))
                if self.has_ended:
                    raise BrokenPipeError
                self._listen(INTERVAL)
        except OSError as error:
            os.close(reader)
            self.has_ended |= isinstance(error, ConnectionError)
            raise
        finally:
            os.close(writer)
        return Forked(self, self._number, reader)

    def status(self, number: int) -> int | None:
        """The exit status of that process; None while it goes on."""
        self._listen(0)
        if self.has_ended and number not in self._statuses and _is_gone(number):
            self._statuses[number] = 1  # nobody can tell any more
        return self._statuses.get(number)

    def close(self) -> None:
        """End it. Runs that go on end, too, each in order."""
        self._channel.close()
        if not self._ready:  # it would finish its imports first
            self._process.kill()
        self._process.wait()

    def _listen(self, seconds: float) -> None:
        """Take in what it says within these seconds."""
        if self.has_ended or not select.select([self._channel], [], [], seconds)[0]:
            return
        try:
            data = self._channel.recv(MOST)
        except ConnectionError:  # it was killed with a request unread
            data = b""
        self.has_ended = not data
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            word, number, status = json.loads(line)
            if word == "ready":
                self._ready = True
            elif word == "started":
                self._number = number
            elif word == "refused":
                self._refused = number
            else:
                self._statuses[number] = status


class Forked:
    """A run that was forked; as much of ``subprocess.Popen`` as a launcher needs."""

    def __init__(self, warm: Warm, number: int, reader: int) -> None:
        self.pid = number
        self.returncode: int | None = None
        self.stdout: TextIO = os.fdopen(reader, encoding="utf-8", errors="replace")
        self._warm = warm

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._warm.status(self.pid)
        return self.returncode

    def wait(self, timeout: float = float("inf")) -> int:
        ends = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > ends:
                raise subprocess.TimeoutExpired(f"run {self.pid}", timeout)
            time.sleep(INTERVAL)
        return self.returncode  # type: ignore[return-value]

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


def main() -> None:
    """Import everything, fork runs on request, and in each of the forks be the run."""
    # These are for the runs and their launcher; this process ends when the launcher does.
    before = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS}
    for name in IMPORTED:
        import_module(name)
    own = os.getpid()
    with socket.socket(fileno=os.dup(0)) as channel:
        request = _served(channel)
    if request is None:
        os._exit(0)  # at once, since runs that go on end when this process has
    _become(*request, parent=own)
    for number, handler in before.items():
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    status = _train()
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as Python does
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    # Python would take every object apart that was imported, for which a fork copies their memory:
    # two seconds.
    os._exit(status)


def _train() -> int:
    """The command, and the status that its process would end with."""
    try:
        runpy.run_module("rdm_solo.train", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # before the command has handlers of its own
        return 128 + signal.SIGINT
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        return 1
    return 0


def _served(channel: socket.socket) -> tuple[dict[str, Any], int] | None:
    """Requests until the launcher is gone; in a fork, the request that it is for."""

    def say(word: str, number: int = 0, status: int = 0) -> None:
        channel.sendall(json.dumps([word, number, status]).encode() + b"\n")

    say("ready")
    while True:
        if select.select([channel], [], [], INTERVAL)[0]:
            data, pipes, _, _ = socket.recv_fds(channel, MOST, 1)
            while not data.endswith(b"\n"):
                more = channel.recv(MOST)
                if not more:
                    return None
                data += more
            # What is sent to the run before it has handlers of its own waits for them.
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
            try:
                number = os.fork()
                answer = "started", number
            except OSError as error:  # no memory, or too many processes
                number = -1
                answer = "refused", error.errno or 1
            if number == 0:
                return json.loads(data), pipes[0]
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            os.close(pipes[0])
            say(*answer)
        for number, status in _ended():
            say("ended", number, status)


def _ended() -> list[tuple[int, int]]:
    found = []
    while True:
        try:
            number, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:  # there is none
            return found
        if not number:
            return found
        found.append((number, os.waitstatus_to_exitcode(status)))


def _is_gone(number: int) -> bool:
    """Whether a process has ended, also where nobody has asked for its status."""
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


def _become(request: dict[str, Any], pipe: int, parent: int) -> None:
    """Make this fork what a process is that a launcher has started."""
    import torch

    os.setsid()
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(pipe, number)
        stream = os.fdopen(number, "w", buffering=1, closefd=False)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    os.close(pipe)
    os.sched_setaffinity(0, request["cores"])
    os.environ |= {**request["variables"], PARENT: str(parent)}
    threads = os.environ.get(THREADS, "").partition(",")[0].strip()
    if threads.isdigit() and int(threads):  # torch reads it when it is imported
        torch.set_num_threads(int(threads))
    sys.argv[1:] = request["options"]


if __name__ == "__main__":
    main()
