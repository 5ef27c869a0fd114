"""What a person sees while a run goes on: a line that moves, or in a log one line an epoch."""

from __future__ import annotations

import logging
import math
import os
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

from rdm_solo.lightning import pl

__all__ = ["Progress", "epoch_line", "moving_line", "short"]

log = logging.getLogger("rdm_solo")

REDRAW = 0.1  # seconds
BAR = 12


class Progress(pl.Callback):  # type: ignore[misc,name-defined]
    """Loss, both effective ranks and accuracy of the last epoch, beside how far this one is.

    In a terminal it is one line that is drawn over; elsewhere (a file, SLURM, CI) a finished epoch
    is one line of the log. Lightning's own bar is off: its names would take several lines.
    """

    after = ("Diagnostics", "WeightedKNN", "CollapseWatch")

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.moves = self.stream.isatty()
        self.values: dict[str, float] = {}
        self._began = self._epoch_began = self._drawn = 0.0
        self._first = 0
        self._on_screen = False
        self._eraser = _Eraser(self)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._began, self._first = time.monotonic(), trainer.current_epoch
        if self.moves and trainer.is_global_zero:
            log.addHandler(self._eraser)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._epoch_began = time.monotonic()
        self._draw(trainer, 0)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if time.monotonic() - self._drawn > REDRAW:
            self._draw(trainer, batch_idx + 1)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        metrics = trainer.callback_metrics  # reduces over processes: all of them come here
        fresh = {name: float(metrics[name]) for name in SHOWN if name in metrics}
        self.values |= fresh
        if trainer.is_global_zero and not self.moves:
            seconds = time.monotonic() - self._epoch_began
            log.info(epoch_line(trainer.current_epoch, trainer.max_epochs, fresh, seconds))
        self._draw(trainer, int(trainer.num_training_batches))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._close()

    def erase(self) -> None:
        """Leave the line to somebody else; the next step draws it again."""
        if self._on_screen:
            self._write("\r\x1b[K")
            self._on_screen = False

    def _close(self) -> None:
        self.erase()
        log.removeHandler(self._eraser)

    def _draw(self, trainer: Any, step: int) -> None:
        if not (self.moves and trainer.is_global_zero):
            return
        self._drawn = now = time.monotonic()
        done = trainer.current_epoch - self._first + step / max(trainer.num_training_batches, 1)
        whole = trainer.max_epochs - self._first
        left = (now - self._began) * (whole - done) / done if done else math.nan
        count = (trainer.current_epoch + 1, trainer.max_epochs, step, trainer.num_training_batches)
        line = moving_line(*map(int, count), self.values, left, _columns(self.stream))
        self._write("\r" + line + "\x1b[K")
        self._on_screen = True

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()


class _Eraser(logging.Handler):
    """Takes the moving line away before a message is printed over it."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self.progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        self.progress.erase()


SHOWN = ("train/loss", "erank/online", "erank/target", "val/knn_acc1", "val/acc1")
ACCURACIES = {"val/knn_acc1": "kNN", "val/acc1": "acc"}


def moving_line(
    epoch: int,
    epochs: int,
    step: int,
    steps: int,
    values: Mapping[str, float],
    left: float,
    columns: int,
) -> str:
    """One line of at most ``columns - 1`` characters; what has no room is left out from the right.

    >>> shown = {"train/loss": -0.8, "erank/online": 4.1, "erank/target": 6.2, "val/acc1": 91.0}
    >>> moving_line(3, 30, 11, 22, shown, 41, 80)
    'epoch 3/30 [######......]  loss -0.800  erank 4.1 < 6.2  acc 91.0  0:41 left'
    """
    full = round(BAR * step / max(steps, 1))
    parts = [f"epoch {epoch}/{epochs} [{'#' * full}{'.' * (BAR - full)}]"]
    shown = {name: value for name, value in values.items() if math.isfinite(value)}
    if "train/loss" in shown:
        parts.append(f"loss {shown['train/loss']:.3f}")
    if {"erank/online", "erank/target"} <= shown.keys():
        online, target = (f"{shown[f'erank/{branch}']:.1f}" for branch in ("online", "target"))
        sign = "<" if float(online) < float(target) else ">" if online != target else "="
        parts.append(f"erank {online} {sign} {target}")
    accuracy = [f"{ACCURACIES[name]} {shown[name]:.1f}" for name in ACCURACIES if name in shown]
    parts += accuracy[:1]
    if math.isfinite(left):
        parts.append(f"{short(left)} left")
    while len(parts) > 1 and len("  ".join(parts)) > columns - 1:
        parts.pop()
    return "  ".join(parts)[: columns - 1]


def epoch_line(epoch: int, epochs: int, values: Mapping[str, float], seconds: float) -> str:
    """A finished epoch (counted from 0) in a log.

    >>> shown = {"train/loss": -0.8, "erank/online": 4.1, "erank/target": 6.2, "val/acc1": 91.0}
    >>> epoch_line(2, 30, shown, 1.4)
    'epoch 3/30: loss -0.800, erank online 4.1 target 6.2 gap 2.1, acc 91.0, 1.4 s'
    """
    parts = []
    shown = {name: value for name, value in values.items() if math.isfinite(value)}
    if "train/loss" in shown:
        parts.append(f"loss {shown['train/loss']:.3f}")
    if {"erank/online", "erank/target"} <= shown.keys():
        online, target = shown["erank/online"], shown["erank/target"]
        parts.append(f"erank online {online:.1f} target {target:.1f} gap {target - online:.1f}")
    parts += [f"{ACCURACIES[name]} {shown[name]:.1f}" for name in ACCURACIES if name in shown]
    return f"epoch {epoch + 1}/{epochs}: {', '.join([*parts, f'{seconds:.1f} s'])}"


def short(seconds: float) -> str:
    """A span of time as a clock shows it.

    >>> short(7), short(3725), short(200_000)
    ('0:07', '1:02:05', '55:33:20')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
