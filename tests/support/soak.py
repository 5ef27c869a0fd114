"""What a training process holds after each epoch: memory, descriptors, threads, files, CPU time."""

from __future__ import annotations

import csv
import os
import resource
import tempfile
from pathlib import Path

from rdm_solo.lightning import pl

NAMES = ["epoch", "rss", "descriptors", "threads", "temporary", "children", "seconds"]


class Held(pl.Callback):
    """Writes a row an epoch into ``soak.csv``: of this process, and of its children the number.

    ``rss`` is VmRSS in kB; ``seconds`` is CPU time of the epoch, of the children as well once they
    have ended; ``temporary`` counts what lies in the folder for temporary files.
    """

    def __init__(self, folder: Path) -> None:
        self.file, self.before = folder / "soak.csv", 0.0

    def on_train_epoch_end(self, trainer, pl_module) -> None:
        status = Path("/proc/self/status").read_text()
        said = dict(line.split(":", 1) for line in status.splitlines())
        now = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        pid = os.getpid()
        row = [
            trainer.current_epoch + 1,
            int(said["VmRSS"].split()[0]),
            len(os.listdir("/proc/self/fd")),
            int(said["Threads"]),
            sum(len(names) for _, *names in os.walk(tempfile.gettempdir())),
            len(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()),
            round(now - self.before, 4),
        ]
        self.before = now
        with self.file.open("a", newline="") as file:
            csv.writer(file).writerows([row] if file.tell() else [NAMES, row])
