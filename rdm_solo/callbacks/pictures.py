"""Pictures of the spectra while a run trains: in its loggers, and ``figures/erank.png``."""

import logging
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rdm_solo.callbacks.diagnostics import Diagnostics
from rdm_solo.callbacks.last_epoch import ends
from rdm_solo.lightning import pl
from rdm_solo.loggers import RunLogger
from rdm_solo.loggers.charts import PICTURE
from rdm_solo.runs import spectra_files
from rdm_solo.runs.files import FIGURES, METRICS
from rdm_solo.runs.metrics_file import read_metrics

log = logging.getLogger("rdm_solo")


class Pictures(pl.Callback):  # type: ignore[misc,name-defined]
    """Draw the spectra that :class:`Diagnostics` measured, every n epochs and after the last.

    Where they are measured more seldom, the next measured epoch is drawn. Only a
    :class:`~rdm_solo.loggers.RunLogger` shows pictures.
    """

    after = ("Diagnostics",)

    def __init__(self, every_n_epochs: int = 10, title: str = "") -> None:
        self.every_n_epochs, self.title = every_n_epochs, title
        self._loggers: list[RunLogger] = []
        self._drawn_epochs: dict[int, Mapping[str, np.ndarray]] = {}  # counted from 1

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin the charts of a resumed run with the epochs before."""
        diagnostics = Diagnostics.of(trainer)
        if self.every_n_epochs and trainer.is_global_zero and diagnostics is not None:
            self._loggers = [each for each in trainer.loggers if isinstance(each, RunLogger)]
            past, _ = spectra_files.read_epochs(diagnostics.folder) if self._loggers else ({}, ())
            self._drawn_epochs = {e: past[e] for e in past if (e - 1) % self.every_n_epochs == 0}

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        diagnostics = Diagnostics.of(trainer)
        if not self._loggers or diagnostics is None or diagnostics.latest is None:
            return
        epoch = trainer.current_epoch + 1
        last_drawn = max(self._drawn_epochs, default=0)
        due = (epoch - 1) // self.every_n_epochs > (last_drawn - 1) // self.every_n_epochs
        if not (due or ends(trainer)):
            return
        try:
            self._draw(trainer, diagnostics.latest, epoch)
        except Exception as error:  # a picture must not end a run
            self._loggers = []
            log.warning(
                f"warning: the pictures of epoch {epoch} could not be drawn or stored "
                f"({type(error).__name__}: {error}); the run continues without."
            )

    def _draw(self, trainer: Any, spectra: Any, epoch: int) -> None:
        from rdm_solo import plots  # with matplotlib, which takes a second to load
        from rdm_solo.plots.style import pixels

        arrays = {name: array.cpu().numpy() for name, array in spectra.arrays().items()}
        self._drawn_epochs[epoch] = arrays
        title = f"{self.title}, epoch {epoch}" if self.title else f"epoch {epoch}"
        image = pixels(plots.epoch_picture(arrays, title))
        step = trainer.global_step - 1  # at which the epoch's scalars are logged
        for logger in self._loggers:
            logger.picture(PICTURE, image, step)
            logger.spectra(self._drawn_epochs, step)


class RankFigure(pl.Callback):  # type: ignore[misc,name-defined]
    """Draw ``figures/erank.png`` from the table of epochs while the run trains.

    Drawing takes about a twentieth of the time.
    """

    after = ("EpochTable",)

    REST = 19  # times as long as the last drawing took

    def __init__(self, folder: Path, title: str = "") -> None:
        self.folder, self.title = folder, title
        self._next = 0.0

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Draw the epochs before: their checkpoint is written by now."""
        if time.monotonic() >= self._next:
            self._draw(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._draw(trainer)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if isinstance(exception, (KeyboardInterrupt, FloatingPointError)):
            self._draw(trainer)

    def _draw(self, trainer: Any) -> None:
        if not (trainer.is_global_zero and (self.folder / METRICS).exists()):
            return
        began = time.monotonic()
        try:
            metrics = read_metrics(self.folder)
            if np.isfinite(metrics["erank/target"]).any():  # it was measured
                from rdm_solo import plots

                figure = plots.rank_picture(metrics, self.title)
                plots.save(figure, self.folder / FIGURES, "erank", formats=["png"])
        except Exception as error:  # a picture must not end a run
            self._next = math.inf
            log.warning(f"warning: erank.png cannot be drawn ({type(error).__name__}: {error})")
            return
        self._next = time.monotonic() + self.REST * (time.monotonic() - began)
