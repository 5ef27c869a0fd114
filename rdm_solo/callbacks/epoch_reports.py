"""Show progress, and list skipped images."""

import contextlib
import logging
import math
import sys
import time
from pathlib import Path
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped, unused-ignore]
from tqdm.contrib.logging import (  # type: ignore[import-untyped, unused-ignore]
    logging_redirect_tqdm,
)

from rdm_solo.callbacks.measurement import Measurement, epoch_row
from rdm_solo.callbacks.untrained import is_untrained
from rdm_solo.ground.distributed import gather_objects
from rdm_solo.ground.errors import printable
from rdm_solo.ground.lightning import pl
from rdm_solo.runs.epoch_line import LEGEND, PROGRESS_COLUMNS, epoch_line
from rdm_solo.runs.files import SKIPPED, write_atomically

log = logging.getLogger("rdm_solo")

# tqdm cuts it at the terminal's width.
BAR = "{desc} [{bar:12}] {n_fmt}/{total_fmt}, {remaining} left{speed}"
BAR_EVERY = 0.5  # seconds between two drawings of the bar
LINE_EVERY = 120.0  # seconds between two lines of one epoch, where there is no bar


class EpochBar(tqdm):  # type: ignore[misc, unused-ignore]
    """A bar for the steps of an epoch, whose format has the additional field ``speed``.

    tqdm reads ``format_dict`` only when it draws, so no other step waits for the device.
    """

    images = 0  # of all processes since the epoch's start
    loss: Any = None  # of the last step, a tensor on the device

    def add(self, images: int, loss: Any) -> None:
        """Advance by one step."""
        self.images += images
        self.loss = loss
        self.update()

    @property
    def format_dict(self) -> dict[str, Any]:
        fields: dict[str, Any] = super().format_dict
        fields["speed"] = speed(self.images, fields["elapsed"], self.loss)
        return fields


def speed(images: int, seconds: float, loss: Any) -> str:
    """Format the images per second and a step's loss, if they are known.

    >>> speed(1024, 2.0, -0.81)
    ', 512 images/s, loss -0.810'
    """
    text = ""
    if images and seconds > 0:
        text += f", {images / seconds:.0f} images/s"
    if loss is not None:
        text += f", loss {float(loss):.3f}"
    return text


class Progress(pl.callbacks.ProgressBar):
    """Log a line for each finished epoch, and show the steps of the current one.

    In a terminal a bar shows them. Elsewhere an epoch logs a line every ``LINE_EVERY`` seconds.
    """

    def __init__(self) -> None:
        super().__init__()
        self.enabled = True
        self.bar: Any = None  # of the current epoch
        self._is_visible = False
        self._is_explained = False
        self._stack = contextlib.ExitStack()

    def disable(self) -> None:  # Lightning calls it on all processes but the first
        self.enabled = False

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        measures = False
        for callback in trainer.callbacks:
            if isinstance(callback, Measurement) and getattr(callback, "every_n_epochs", False):
                measures = True
        if self.enabled and measures and not trainer.ckpt_path:
            log.info("measuring the untrained network ...")

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if is_untrained(trainer):
            self._log(trainer, 0)
        self._is_visible = self.enabled and sys.stderr.isatty()
        if self._is_visible:  # messages are printed above the bar
            self._stack.enter_context(logging_redirect_tqdm())

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.epoch_start = self.last_line = time.monotonic()
        self.bar = EpochBar(
            desc=f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}",
            total=trainer.num_training_batches,  # may be infinite
            bar_format=BAR,
            ascii=".#",
            mininterval=BAR_EVERY,
            dynamic_ncols=True,
            leave=False,
            disable=not self._is_visible,
        )

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        images = len(batch[-1]) * trainer.world_size
        loss = getattr(pl_module, "step_loss", None)
        self.bar.add(images, loss)
        now = time.monotonic()
        if self.enabled and not self._is_visible and now - self.last_line >= LINE_EVERY:
            self.last_line = now
            step = f"step {batch_idx + 1}/{trainer.num_training_batches}"
            details = speed(self.bar.images, now - self.epoch_start, loss)
            log.info(f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}, {step}{details}")

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.bar.close()
        seconds = time.monotonic() - self.epoch_start
        self._log(trainer, trainer.current_epoch + 1, seconds)

    def _log(self, trainer: Any, epoch: int, seconds: float = math.nan) -> None:
        scalars = epoch_row(trainer, epoch).scalars
        if not self.enabled or not scalars.keys() & PROGRESS_COLUMNS:
            return
        if "erank/online" in scalars and not self._is_explained:
            log.info(LEGEND)
            self._is_explained = True
        log.info(epoch_line(epoch, trainer.max_epochs, scalars, seconds))

    def on_train_end(self, *args: Any) -> None:
        if self.bar is not None:  # an exception may come before the first epoch
            self.bar.close()
        self._stack.close()

    on_exception = on_train_end


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
