"""A terminal of a given width, in which a test starts a command as a user does."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

from conftest import ROOT


def in_a_terminal(
    arguments: list[str], cwd: Path, columns: int = 80, interrupt_after: bytes = b""
) -> tuple[str, int]:
    """What ``python -m ARGUMENTS`` writes to a terminal of that width, and its exit status.

    It gets a SIGINT, as by Ctrl-C, once the text ``interrupt_after`` has been seen, if any.
    """
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH", "")) if p)
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": ""}
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=cwd,
        env=environment,
        stdin=follower,
        stdout=follower,
        stderr=follower,
    )
    os.close(follower)
    seen = b""
    while True:
        try:
            read = os.read(leader, 65536)
        except OSError:  # how Linux says that the other end is closed
            break
        if not read:
            break
        seen += read
        if interrupt_after and interrupt_after in seen:
            process.send_signal(signal.SIGINT)
            interrupt_after = b""
    os.close(leader)
    return seen.decode(), process.wait(timeout=600)
