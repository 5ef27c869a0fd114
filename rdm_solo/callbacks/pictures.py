"""Spectra and filter curves as pictures and charts in the loggers that show them, as it trains."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig

from rdm_solo import loggers
from rdm_solo.callbacks.diagnostics import Diagnostics
from rdm_solo.callbacks.last_epoch import ends
from rdm_solo.lightning import pl
from rdm_solo.loggers.charts import PICTURE
from rdm_solo.runs import labels, spectra_files
from rdm_solo.runs.files import FIGURES
from rdm_solo.runs.folder import Run, read_metrics

__all__ = ["Pictures", "RankFigure", "draw_ranks", "rasterise"]

log = logging.getLogger("rdm_solo")


class Pictures(pl.Callback):  # type: ignore[misc,name-defined]
    """Draw what :class:`Diagnostics` has measured: every n epochs, and after the last.

    It stands behind the diagnostics in the list of callbacks. Where they measure more seldom, the
    next measured epoch is drawn. Nothing is drawn for runs whose loggers show no pictures.
    """

    after = ("Diagnostics",)

    def __init__(self, every_n_epochs: int = 10, title: str = "") -> None:
        self.every_n_epochs, self.title = every_n_epochs, title
        self._seen: Any = None
        self._drawn = 0  # epoch, counted from 1
        self._history: dict[int, Mapping[str, np.ndarray]] = {}
        self._broken = False

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Where a run goes on, its charts begin with the epochs before."""
        diagnostics = self._heard(trainer)
        if diagnostics is not None:
            past, _ = spectra_files.read_epochs(diagnostics.folder)
            self._history = {e: past[e] for e in past if (e - 1) % self.every_n_epochs == 0}
            self._drawn = max(self._history, default=0)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        diagnostics = None if self._broken else self._heard(trainer)
        if diagnostics is None:
            return
        spectra = diagnostics.latest
        epoch = trainer.current_epoch + 1
        due = (epoch - 1) // self.every_n_epochs > (self._drawn - 1) // self.every_n_epochs
        fresh, self._seen = spectra is not self._seen, spectra
        if spectra is None or not fresh or not (due or ends(trainer)):
            return
        self._drawn = epoch
        try:
            self._show(trainer, spectra, epoch)
        except Exception as error:  # no picture is worth a run
            self._broken = True
            log.warning(
                f"warning: the pictures of epoch {epoch} could not be made or stored "
                f"({type(error).__name__}: {error}); the run goes on without."
            )

    def _heard(self, trainer: Any) -> Diagnostics | None:
        """The diagnostics whose spectra are to be drawn, by this process; None where none are."""
        shown = any(map(loggers.shows_pictures, trainer.loggers))
        wanted = self.every_n_epochs > 0 and trainer.is_global_zero and shown
        return Diagnostics.of(trainer) if wanted else None

    def _show(self, trainer: Any, spectra: Any, epoch: int) -> None:
        from rdm_solo import plots

        arrays = {name: array.cpu().numpy() for name, array in spectra.arrays().items()}
        self._history[epoch] = arrays
        words = f"epoch {epoch}"
        drawn = plots.epoch_picture(arrays, f"{self.title}, {words}" if self.title else words)
        # The step that the epoch's scalars stand at.
        step = trainer.global_step - 1
        loggers.show(trainer.loggers, PICTURE, rasterise(drawn), self._history, step)


class RankFigure(pl.Callback):  # type: ignore[misc,name-defined]
    """Draw ``figures/erank.png`` while the run trains, after the first epoch and then so seldom
    that drawing takes about a twentieth of the time.

    It stands behind the table of epochs, from which it draws.
    """

    after = ("EpochTable",)

    REST = 19  # times as long as the last drawing took

    def __init__(self, folder: Path, cfg: DictConfig) -> None:
        self.folder, self.cfg = folder, cfg
        self._next = 0.0

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        began = time.monotonic()
        if not trainer.is_global_zero or began < self._next or ends(trainer):
            return  # the last one is drawn when the run closes
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

    drawn = plots.effective_rank([Run(folder, cfg, metrics)], labels.title(cfg))
    plots.save(drawn, folder / FIGURES, "erank", formats=["png"])


def rasterise(figure: Any) -> np.ndarray:
    """A matplotlib figure as bytes of shape ``(height, width, 3)``, without any window."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from rdm_solo.plots.style import STYLE

    canvas = FigureCanvasAgg(figure)
    with rc_context(STYLE):  # by which it was laid out
        canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()
