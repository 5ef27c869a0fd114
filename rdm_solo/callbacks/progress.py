"""Progress of a run: a bar in a terminal, or one line per epoch in a log."""

import contextlib
import logging
import math
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from rdm_solo.lightning import pl

log = logging.getLogger("rdm_solo")

BAR = 12
SHOWN = ("train/loss", "erank/online", "erank/target", "val/knn_acc1", "val/acc1")
ACCURACIES = {"val/knn_acc1": "kNN", "val/acc1": "acc"}


class Progress(pl.callbacks.TQDMProgressBar):
    """Lightning's bar with a text of ours: loss, both effective ranks and accuracy of the last
    epoch, beside how far this one is. Lightning's own names would take several lines.

    Without a terminal (a file, SLURM, CI) a finished epoch is one line of the log instead.
    """

    after = ("Diagnostics", "WeightedKNN", "CollapseWatch")

    def __init__(self) -> None:
        super().__init__()
        self.moves = sys.stderr.isatty()
        self.values: dict[str, float] = {}
        self.first_epoch, self.epoch_began = 0, 0.0
        self.redirected = contextlib.ExitStack()

    def init_train_tqdm(self) -> Any:
        hidden = self.is_disabled or not self.moves
        return tqdm(bar_format="{desc}", file=sys.stderr, leave=False, disable=hidden)

    def init_validation_tqdm(self) -> Any:
        return tqdm(disable=True)

    def get_metrics(self, trainer: Any, pl_module: Any) -> dict[str, Any]:
        return {}  # ours are in the text

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        super().on_train_start(trainer, pl_module)
        self.first_epoch = trainer.current_epoch
        if self.moves:  # messages take the line away, and it is drawn again below them
            self.redirected.enter_context(logging_redirect_tqdm())

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.epoch_began = time.monotonic()
        self._show(trainer, 0)
        self.train_progress_bar.refresh()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._show(trainer, batch_idx + 1)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        metrics = trainer.callback_metrics  # reduces over processes: all of them come here
        fresh = {name: float(metrics[name]) for name in SHOWN if name in metrics}
        self.values |= fresh
        if trainer.is_global_zero and not self.moves:
            seconds = time.monotonic() - self.epoch_began
            log.info(epoch_line(trainer.current_epoch + 1, trainer.max_epochs, fresh, seconds))
        self._show(trainer, int(trainer.num_training_batches))
        self.train_progress_bar.refresh()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.train_progress_bar.close()
        self.redirected.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if self._train_progress_bar is not None:  # it may have failed before training started
            self.on_train_end(trainer, pl_module)

    def _show(self, trainer: Any, step: int) -> None:
        bar = self.train_progress_bar
        if bar.disable:
            return
        steps, epoch = int(trainer.num_training_batches), trainer.current_epoch + 1
        done = trainer.current_epoch - self.first_epoch + step / max(steps, 1)
        to_come = trainer.max_epochs - self.first_epoch - done
        left = bar.format_dict["elapsed"] * to_come / done if done else math.nan
        columns = os.get_terminal_size(sys.stderr.fileno()).columns or 80
        line = moving_line(epoch, trainer.max_epochs, step, steps, self.values, left, columns)
        bar.set_description_str(line, refresh=False)
        bar.update()  # draws it, at most ten times a second


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
    'epoch 3/30 [######......]  loss -0.800  erank 4.1 < 6.2  acc 91.0  00:41 left'
    """
    full = round(BAR * step / max(steps, 1))
    parts = [f"epoch {epoch}/{epochs} [{'#' * full}{'.' * (BAR - full)}]"]
    parts += _measured(values, "erank {online:.1f} {sign} {target:.1f}", accuracies=1)
    if math.isfinite(left):
        parts.append(f"{tqdm.format_interval(left)} left")
    while len(parts) > 1 and len("  ".join(parts)) > columns - 1:
        parts.pop()
    return "  ".join(parts)[: columns - 1]


def epoch_line(epoch: int, epochs: int, values: Mapping[str, float], seconds: float) -> str:
    """A finished epoch in a log.

    >>> shown = {"train/loss": -0.8, "erank/online": 4.1, "erank/target": 6.2, "val/acc1": 91.0}
    >>> epoch_line(3, 30, shown, 1.4)
    'epoch 3/30: loss -0.800, erank online 4.1 target 6.2 gap 2.1, acc 91.0, 1.4 s'
    """
    parts = _measured(values, "erank online {online:.1f} target {target:.1f} gap {gap:.1f}")
    return f"epoch {epoch}/{epochs}: {', '.join([*parts, f'{seconds:.1f} s'])}"


def _measured(values: Mapping[str, float], eranks: str, accuracies: int = 2) -> list[str]:
    """Loss, effective ranks and accuracies, of those that are finite."""
    shown = {name: value for name, value in values.items() if math.isfinite(value)}
    parts = []
    if "train/loss" in shown:
        parts.append(f"loss {shown['train/loss']:.3f}")
    if {"erank/online", "erank/target"} <= shown.keys():
        online, target = shown["erank/online"], shown["erank/target"]
        gap = round(target, 1) - round(online, 1)
        sign = "<" if gap > 0 else ">" if gap < 0 else "="
        parts.append(eranks.format(online=online, target=target, gap=target - online, sign=sign))
    known = [f"{word} {shown[name]:.1f}" for name, word in ACCURACIES.items() if name in shown]
    return parts + known[:accuracies]
