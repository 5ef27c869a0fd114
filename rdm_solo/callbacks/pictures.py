"""Pictures and charts of the spectra in the run's loggers, while it trains."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig

from rdm_solo.callbacks.diagnostics import Diagnostics
from rdm_solo.callbacks.last_epoch import ends
from rdm_solo.lightning import pl
from rdm_solo.loggers import RunLogger
from rdm_solo.loggers.charts import PICTURE
from rdm_solo.runs import spectra_files
from rdm_solo.runs.files import FIGURES
from rdm_solo.runs.folder import Run
from rdm_solo.runs.metrics_file import read_metrics

__all__ = ["Pictures", "RankFigure", "draw_ranks", "rasterise"]

log = logging.getLogger("rdm_solo")


class Pictures(pl.Callback):  # type: ignore[misc,name-defined]
    """Draw the spectra that :class:`Diagnostics` measured: every n epochs, and after the last.

    It must follow the diagnostics in the list of callbacks. Where they measure more seldom, the
    next measured epoch is drawn. Without a :class:`~rdm_solo.loggers.RunLogger` nothing is drawn.
    """

    after = ("Diagnostics",)

    def __init__(self, every_n_epochs: int = 10, title: str = "") -> None:
        self.every_n_epochs, self.title = every_n_epochs, title
        self._last_spectra: Any = None
        self._last_drawn = 0  # epoch, counted from 1
        self._drawn_epochs: dict[int, Mapping[str, np.ndarray]] = {}
        self._failed = False

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The charts of a run that goes on begin with the epochs before."""
        diagnostics = self._diagnostics(trainer)
        if diagnostics is not None:
            past, _ = spectra_files.read_epochs(diagnostics.folder)
            self._drawn_epochs = {e: past[e] for e in past if (e - 1) % self.every_n_epochs == 0}
            self._last_drawn = max(self._drawn_epochs, default=0)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        diagnostics = self._diagnostics(trainer)
        if diagnostics is None or self._failed:
            return
        spectra, epoch = diagnostics.latest, trainer.current_epoch + 1
        measured = spectra is not None and spectra is not self._last_spectra
        self._last_spectra = spectra
        due = (epoch - 1) // self.every_n_epochs > (self._last_drawn - 1) // self.every_n_epochs
        if not measured or not (due or ends(trainer)):
            return
        self._last_drawn = epoch
        try:
            self._draw(trainer, spectra, epoch)
        except Exception as error:  # a run does not end for a picture
            self._failed = True
            log.warning(
                f"warning: the pictures of epoch {epoch} could not be made or stored "
                f"({type(error).__name__}: {error}); the run goes on without."
            )

    def _diagnostics(self, trainer: Any) -> Diagnostics | None:
        """The run's diagnostics; None where this process draws nothing."""
        if self.every_n_epochs == 0 or not trainer.is_global_zero or not _run_loggers(trainer):
            return None
        return Diagnostics.of(trainer)

    def _draw(self, trainer: Any, spectra: Any, epoch: int) -> None:
        from rdm_solo import plots

        arrays = {name: array.cpu().numpy() for name, array in spectra.arrays().items()}
        self._drawn_epochs[epoch] = arrays
        title = f"{self.title}, epoch {epoch}" if self.title else f"epoch {epoch}"
        image = rasterise(plots.epoch_picture(arrays, title))
        step = trainer.global_step - 1  # at which the epoch's scalars are logged
        for logger in _run_loggers(trainer):
            logger.picture(PICTURE, image, step)
            logger.spectra(self._drawn_epochs, step)


def _run_loggers(trainer: Any) -> list[RunLogger]:
    return [logger for logger in trainer.loggers if isinstance(logger, RunLogger)]


class RankFigure(pl.Callback):  # type: ignore[misc,name-defined]
    """Draw ``figures/erank.png`` while the run trains, after the first epoch then so seldom that
    drawing takes about a twentieth of the time, and when it ends.

    It stands behind the table of epochs, from which it draws.
    """

    after = ("EpochTable",)

    REST = 19  # times as long as the last drawing took

    def __init__(self, folder: Path, cfg: DictConfig) -> None:
        self.folder, self.cfg = folder, cfg
        self._next = 0.0

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.is_global_zero and (time.monotonic() >= self._next or ends(trainer)):
            self._draw()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if trainer.is_global_zero and isinstance(exception, KeyboardInterrupt):
            self._draw()

    def _draw(self) -> None:
        began = time.monotonic()
        try:
            draw_ranks(self.folder, self.cfg)
        except Exception as error:  # no picture is worth a run
            self._next = float("inf")
            log.warning(f"warning: erank.png cannot be drawn ({type(error).__name__}: {error})")
            return
        ended = time.monotonic()
        self._next = ended + self.REST * (ended - began)


def draw_ranks(folder: Path, cfg: DictConfig) -> None:
    """``figures/erank.png`` from ``metrics.csv``; nothing where no rank was measured."""
    metrics = read_metrics(folder)
    if not np.isfinite(metrics.get("erank/target", np.empty(0))).any():
        return
    from rdm_solo import plots  # with matplotlib, which takes a second to load

    drawn = plots.effective_rank([Run(folder, cfg, metrics)])
    plots.save(drawn, folder / FIGURES, "erank", formats=["png"])


def rasterise(figure: Any) -> np.ndarray:
    """A matplotlib figure as bytes of shape ``(height, width, 3)``, without any window."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from rdm_solo.plots.style import STYLE

    canvas = FigureCanvasAgg(figure)
    with rc_context(STYLE):  # with which it was laid out
        canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()
