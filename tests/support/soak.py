"""What a training process holds after each epoch: memory, descriptors, threads, files, CPU time."""

from __future__ import annotations

import csv
import os
import resource
import tempfile
import time
from pathlib import Path

import torch

from rdm_solo.lightning import pl

NAMES = ["epoch", "rss", "descriptors", "threads", "temporary", "children", "seconds", "work"]


class Held(pl.Callback):
    """Writes a row an epoch into ``soak.csv``: of this process, and of its children the number.

    ``rss`` is VmRSS in kB; ``temporary`` counts what lies in the folder for temporary files;
    ``seconds`` is this process's CPU time for the epoch. Other programs change what a core does in
    a second, by a fifth and more, so ``work`` is that time in units of a fixed piece of work, which
    is done anew in each epoch.
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / "soak.csv"
        self.before = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        self.unit = unit_of_work()

    def on_train_epoch_end(self, trainer, pl_module) -> None:
        status = Path("/proc/self/status").read_text()
        said = dict(line.split(":", 1) for line in status.splitlines())
        seconds = sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) - self.before
        unit = unit_of_work()
        pid = os.getpid()
        row = [
            trainer.current_epoch + 1,
            int(said["VmRSS"].split()[0]),
            len(os.listdir("/proc/self/fd")),
            int(said["Threads"]),
            sum(len(names) for _, *names in os.walk(tempfile.gettempdir())),
            len(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()),
            round(seconds, 4),
            round(2 * seconds / (self.unit + unit), 4),  # of before and after the epoch
        ]
        self.unit = unit
        with self.file.open("a", newline="") as file:
            csv.writer(file).writerows([row] if file.tell() else [NAMES, row])
        self.before = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])


def unit_of_work() -> float:
    """Seconds of CPU time that a few steps of a small network take: Python and arithmetic."""
    began = time.thread_time()
    images = torch.linspace(-1, 1, 12 * 3 * 16 * 16).view(12, 3, 16, 16)
    weight = torch.linspace(-1, 1, 16 * 3 * 3 * 3).view(16, 3, 3, 3).requires_grad_()
    for _ in range(40):
        torch.nn.functional.conv2d(images, weight).relu().mean().backward()
    return time.thread_time() - began
