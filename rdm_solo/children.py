"""The other processes of a DDP run that Lightning has started from this one."""

from __future__ import annotations

import subprocess
from typing import Any

__all__ = ["let_go"]


def let_go(trainer: Any, failed: bool) -> None:
    """Wait for them, and end those that hang, when the run is over.

    Lightning watches them from a thread that kills this process, too, seconds after one of them has
    failed. In a sweep, that would take the runs that are still to come along; so the run that has
    failed takes its own processes with it, and the thread finds none left.
    """
    started = getattr(trainer.strategy.launcher, "procs", [])
    children = [child for child in started if isinstance(child, subprocess.Popen)]
    if not children:
        return
    started.clear()
    for child in children:
        try:
            # Those of a failed run may hang in a sum that nobody joins; others have rows to write.
            child.wait(timeout=5 if failed else 120)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
