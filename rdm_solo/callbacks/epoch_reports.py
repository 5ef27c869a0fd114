"""Show progress, and list skipped images."""

import contextlib
import logging
import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped, unused-ignore]
from tqdm.contrib.logging import (  # type: ignore[import-untyped, unused-ignore]
    logging_redirect_tqdm,
)

from rdm_solo.callbacks.measurement import epoch_row
from rdm_solo.callbacks.untrained import is_untrained
from rdm_solo.ground.distributed import gather_objects
from rdm_solo.ground.errors import printable
from rdm_solo.ground.lightning import pl
from rdm_solo.runs.files import SKIPPED, write_atomically

log = logging.getLogger("rdm_solo")

BAR = "{desc} [{bar:12}]  {remaining} left"  # tqdm cuts it at the terminal's width
ACCURACIES = {"val/knn_acc1": "kNN", "val/acc1": "acc"}
PROGRESS_COLUMNS = {"train/loss", "erank/online", "erank/target", *ACCURACIES}


class Progress(pl.callbacks.ProgressBar):
    """Log a line for each finished epoch; in a terminal, show a bar for the whole run below."""

    def __init__(self) -> None:
        super().__init__()
        self.enabled = True
        self._stack = contextlib.ExitStack()

    def disable(self) -> None:  # Lightning calls it on all processes but the first
        self.enabled = False

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        is_visible = self.enabled and sys.stderr.isatty()
        remaining_epochs = trainer.max_epochs - trainer.current_epoch
        self.bar = tqdm(
            total=trainer.num_training_batches * remaining_epochs,  # may be infinite
            bar_format=BAR,
            ascii=".#",
            dynamic_ncols=True,
            leave=False,
            disable=not is_visible,
        )
        self._stack.callback(self.bar.close)
        if is_untrained(trainer):
            self._log(trainer, 0)
        if is_visible:  # messages are printed above the bar
            self._stack.enter_context(logging_redirect_tqdm())

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.epoch_start = time.monotonic()
        self.bar.set_description_str(f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}")

    def on_train_batch_end(self, *args: Any) -> None:
        self.bar.update()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        seconds = time.monotonic() - self.epoch_start
        self._log(trainer, trainer.current_epoch + 1, seconds)

    def _log(self, trainer: Any, epoch: int, seconds: float = math.nan) -> None:
        scalars = epoch_row(trainer, epoch).scalars
        if self.enabled and scalars.keys() & PROGRESS_COLUMNS:
            log.info(epoch_line(epoch, trainer.max_epochs, scalars, seconds))

    def on_train_end(self, *args: Any) -> None:
        self._stack.close()

    on_exception = on_train_end


def epoch_line(epoch: int, epochs: int, values: Mapping[str, float], seconds: float) -> str:
    """Format an epoch's log line from its finite values; epoch 0 is the untrained network.

    >>> values = {"train/loss": -0.8, "erank/online": 4.1, "erank/target": 6.2, "val/acc1": 91.0}
    >>> epoch_line(3, 30, values, 1.4)
    'epoch 3/30: loss -0.800, erank 4.1 < 6.2, acc 91.0, 1.4 s'
    """
    finite = {name: value for name, value in values.items() if math.isfinite(value)}
    words = []
    if "train/loss" in finite:
        words.append(f"loss {finite['train/loss']:.3f}")
    if "erank/online" in finite and "erank/target" in finite:
        online = round(finite["erank/online"], 1)
        target = round(finite["erank/target"], 1)
        sign = "="
        if online != target:
            sign = "<" if online < target else ">"
        words.append(f"erank {online:.1f} {sign} {target:.1f}")
    for name, word in ACCURACIES.items():
        if name in finite:
            words.append(f"{word} {finite[name]:.1f}")
    if epoch == 0:
        return f"before training: {', '.join(words)}"
    words.append(f"{seconds:.1f} s")
    return f"epoch {epoch}/{epochs}: {', '.join(words)}"


class SkippedImages(pl.Callback):
    """List the images that any process skipped in ``skipped.txt``, and log the first ones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: dict[str, str] = {}  # by path

    def state_dict(self) -> dict[str, Any]:
        return {"lines": self.lines}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.lines = dict(state_dict["lines"])

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        epoch = trainer.current_epoch + 1
        new: dict[str, str] = {}
        for reasons in gather_objects(trainer.datamodule.skipped()):
            new |= reasons
        for path in self.lines:
            new.pop(path, None)
        if not new:
            return
        for path in sorted(new):
            self.lines[path] = f"epoch {epoch}: {printable(path)} {new[path]}\n"
        if trainer.is_global_zero:
            from rdm_solo.data.file_loader import skipped_images  # needed only for files

            log.warning(f"warning: epoch {epoch}: {skipped_images(new)}; {SKIPPED} lists them")
            text = "".join(self.lines.values())
            write_atomically(self.folder / SKIPPED, text)
