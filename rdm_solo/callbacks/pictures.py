"""Log pictures of spectra while a run trains, and draw ``figures/erank.png`` at its end."""

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rdm_solo.callbacks import is_due
from rdm_solo.ground.lightning import pl
from rdm_solo.runs import spectra_files
from rdm_solo.runs.files import FIGURES, METRICS
from rdm_solo.runs.metrics_file import read_metrics

log = logging.getLogger("rdm_solo")


@dataclass(eq=False)
class Pictures(pl.Callback):
    """Log pictures of the measured spectra every n epochs and after the last epoch.

    Only :class:`~rdm_solo.loggers.run_logger.RunLogger` loggers support pictures.
    """

    folder: Path
    every_n_epochs: int = 10
    title: str = ""

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.is_global_zero and is_due(trainer, self.every_n_epochs):
            with _warn_on_failure():
                self._draw(trainer)

    def _draw(self, trainer: Any) -> None:
        from rdm_solo import plots  # loads matplotlib
        from rdm_solo.loggers.run_logger import RunLogger, log10_eigenvalues
        from rdm_solo.plots.style import pixels

        epoch = trainer.current_epoch + 1
        epochs, _ = spectra_files.read_epochs(self.folder)
        loggers = [logger for logger in trainer.loggers if isinstance(logger, RunLogger)]
        if epoch not in epochs or not loggers:  # not measured
            return
        title = f"epoch {epoch}"
        if self.title:
            title = f"{self.title}, {title}"
        image = pixels(plots.epoch_picture(epochs[epoch], title))
        step = trainer.global_step - 1  # the step of the epoch's scalars
        for logger in loggers:
            logger.picture(image, step)
            logger.histograms(log10_eigenvalues(epochs[epoch]), step)


@dataclass(eq=False)
class RankFigure(pl.Callback):
    """Draw ``figures/erank.png`` from ``metrics.csv`` when training ends."""

    folder: Path
    title: str = ""

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.is_global_zero or not (self.folder / METRICS).exists():
            return
        with _warn_on_failure():
            metrics = read_metrics(self.folder)
            if np.isfinite(metrics["erank/target"]).any():  # measured at least once
                from rdm_solo import plots

                figure = plots.rank_picture(metrics, self.title)
                plots.save(figure, self.folder / FIGURES, "erank", formats=["png"])


@contextlib.contextmanager
def _warn_on_failure() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        log.warning(f"warning: a picture cannot be drawn ({type(error).__name__}: {error})")
