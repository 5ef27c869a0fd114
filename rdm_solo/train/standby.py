"""Start the process of a sweep's next run while the previous run trains.

Importing torch, Lightning and solo-learn takes seconds. A *standby* is a process that imports them
in advance. It then waits for the options of its run, and continues like
``python -m rdm_solo.train OPTIONS``. Each process still trains one run.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FLAG = "--standby"  # the next argument is the file descriptor from which a standby reads


def wait_for_options() -> None:
    """Replace this process's options by those that the sweep sends, if it is a standby."""
    if FLAG not in sys.argv[1:2]:
        return
    import rdm_solo.train.run  # noqa: F401, with torch, Lightning and solo-learn

    with open(int(sys.argv[2])) as pipe:
        text = pipe.read()
    if not text:  # the sweep has closed the pipe: no further run
        raise SystemExit
    sys.argv[1:] = json.loads(text)


@dataclass
class Standby:
    """A process that waits for the options of a run."""

    process: subprocess.Popen[str]
    pipe: int  # where the process's options are written
    environment: Mapping[str, str]
    cwd: str

    def send(self, options: Sequence[str]) -> bool:
        """Send the options of the run; return whether the process was still alive."""
        try:
            with open(self.pipe, "w") as pipe:
                pipe.write(json.dumps(options))
        except BrokenPipeError:
            return False
        return True

    def end(self) -> None:
        """End a process that has received no options."""
        os.close(self.pipe)
        self.process.kill()
        self.process.communicate()


class Starter:
    """Start the processes of a sweep's runs, and standbys for the runs that start later.

    Args:
        runs: number of runs.
        at_once: number of runs that train at the same time, and of standbys at most.
    """

    def __init__(self, runs: int = 1, at_once: int = 1) -> None:
        self.runs = runs
        self.at_once = at_once
        self.started = 0
        self.standbys: list[Standby] = []
        self.lock = threading.Lock()  # launcher=local starts runs from several threads

    def __enter__(self) -> "Starter":
        return self

    def __exit__(self, *args: Any) -> None:
        for standby in self.standbys:
            standby.end()

    def start(
        self, options: Sequence[str], environment: Mapping[str, str], cwd: str
    ) -> subprocess.Popen[str]:
        """Start ``python -m rdm_solo.train OPTIONS``, in a standby if there is one."""
        with self.lock:
            self.started += 1
            process = self._send(options, environment, cwd)
            if process is None:
                process = _python(options, environment, cwd)
            # The first runs start together; a standby is of use to the others.
            later = self.runs - max(self.started, self.at_once)
            if len(self.standbys) < min(later, self.at_once):
                self.standbys.append(_standby(environment, cwd))
            while len(self.standbys) > max(later, 0):  # of no use to any run
                self.standbys.pop(0).end()
        return process

    def _send(
        self, options: Sequence[str], environment: Mapping[str, str], cwd: str
    ) -> subprocess.Popen[str] | None:
        """Send the options to a standby with this environment; return None if there is none."""
        for standby in list(self.standbys):
            if standby.environment == environment and standby.cwd == cwd:
                self.standbys.remove(standby)
                if standby.send(options):
                    return standby.process
                standby.process.communicate()  # it has died, perhaps for want of memory
        return None


def _standby(environment: Mapping[str, str], cwd: str) -> Standby:
    reading, writing = os.pipe()
    process = _python([FLAG, str(reading)], environment, cwd, pass_fds=[reading])
    os.close(reading)
    return Standby(process, writing, environment, cwd)


def _python(
    options: Sequence[str], environment: Mapping[str, str], cwd: str, pass_fds: Sequence[int] = ()
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "rdm_solo.train", *options],
        cwd=cwd,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        pass_fds=pass_fds,
        preexec_fn=_ignore_slurm_signals if "SLURM_JOB_ID" in environment else None,
    )


def _ignore_slurm_signals() -> None:
    """Ignore SLURM's signals before a time limit: submitit handles them in the parent process."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
