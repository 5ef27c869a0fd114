"""The other processes of a DDP run that Lightning has started from this one."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

from rdm_solo.lightning import pl
from rdm_solo.runs.files import SIGNALS


class Children(pl.Callback):
    """Watches this process's children in Lightning's place.

    When one fails, Lightning kills all within five seconds: perhaps before this process has said
    why, and with it the rest of a sweep. Here it has ``grace`` seconds to end by itself.
    """

    def __init__(self, grace: float = 60) -> None:
        self.grace = grace
        self._started: list[subprocess.Popen[bytes]] = []
        self._over = threading.Event()

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._take_over(trainer)
        if self._started:
            threading.Thread(target=self._watch, daemon=True, name="rdm_solo-children").start()

    def stopped_by(self, seconds: float = 10) -> signal.Signals | None:
        """The signal by which another process was told to stop, if that is why this one failed."""
        until = time.monotonic() + seconds
        for child in self._started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0, until - time.monotonic()))
        codes = [child.returncode for child in self._started]
        return next((n for n in SIGNALS if {128 + n, -n} & {*codes}), None)

    def let_go(self, trainer: Any, failed: bool) -> None:
        """Wait for them, and end those that hang, when the run is over."""
        self._over.set()
        self._take_over(trainer)  # a run can fail before it is set up: no free port, say
        for child in self._started:
            try:
                # Those of a failed run may hang in a sum that nobody joins; others write rows.
                child.wait(timeout=5 if failed else 120)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def _take_over(self, trainer: Any) -> None:
        observed = getattr(trainer.strategy.launcher, "procs", [])
        self._started = [child for child in observed if isinstance(child, subprocess.Popen)]
        if self._started:
            trainer.strategy.launcher.procs = list(observed)  # whom Ctrl-C reaches
            observed.clear()  # Lightning's thread finds nobody to watch, and ends

    def _watch(self) -> None:
        while not any(child.poll() for child in self._started):
            if self._over.wait(0.5):
                return
        if self._over.wait(self.grace):
            return
        sys.stderr.write("error: another process of this run has failed, and this one hangs.\n")
        sys.stderr.flush()
        for child in self._started:
            child.kill()
        # Only the system can end a process that waits in a library's code.
        os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
