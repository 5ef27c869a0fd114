"""Spectra and filter curves as pictures and charts in the loggers that show them, as it trains."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from rdm_solo import loggers
from rdm_solo.callbacks.diagnostics import Diagnostics
from rdm_solo.callbacks.last_epoch import ends
from rdm_solo.lightning import pl
from rdm_solo.loggers.charts import PICTURE

__all__ = ["Pictures", "rasterise"]

log = logging.getLogger("rdm_solo")


class Pictures(pl.Callback):  # type: ignore[misc,name-defined]
    """Draw what :class:`Diagnostics` has measured: every n epochs, and after the last.

    It stands behind the diagnostics in the list of callbacks. Where they measure more seldom, the
    next measured epoch is drawn. Nothing is drawn for runs whose loggers show no pictures.
    """

    def __init__(self, every_n_epochs: int = 10, title: str = "") -> None:
        self.every_n_epochs, self.title = every_n_epochs, title
        self._seen: Any = None
        self._drawn = -1  # epoch
        self._history: dict[int, Mapping[str, np.ndarray]] = {}
        self._broken = False

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Where a run goes on, its charts begin with the epochs before."""
        diagnostics = self._heard(trainer)
        if diagnostics is not None:
            past = {int(arrays["epoch"]): arrays for arrays in diagnostics.epochs}
            self._history = {e: past[e] for e in past if e % self.every_n_epochs == 0}
            self._drawn = max(self._history, default=-1)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        diagnostics = None if self._broken else self._heard(trainer)
        if diagnostics is None:
            return
        spectra = diagnostics.latest
        epoch = trainer.current_epoch
        due = epoch // self.every_n_epochs > self._drawn // self.every_n_epochs
        fresh, self._seen = spectra is not self._seen, spectra
        if spectra is None or not fresh or not (due or ends(trainer)):
            return
        self._drawn = epoch
        try:
            self._show(trainer, spectra)
        except Exception as error:  # no picture is worth a run
            self._broken = True
            log.warning(
                f"warning: the pictures of epoch {epoch + 1} could not be made or stored "
                f"({type(error).__name__}: {error}); the run goes on without."
            )

    def _heard(self, trainer: Any) -> Diagnostics | None:
        """The diagnostics whose spectra are to be drawn, by this process; None where none are."""
        shown = any(map(loggers.shows_pictures, trainer.loggers))
        wanted = self.every_n_epochs > 0 and trainer.is_global_zero and shown
        return Diagnostics.of(trainer) if wanted else None

    def _show(self, trainer: Any, spectra: Any) -> None:
        from rdm_solo import plots

        epoch = trainer.current_epoch
        arrays = {name: array.cpu().numpy() for name, array in spectra.arrays().items()}
        self._history[epoch] = arrays
        words = f"epoch {epoch + 1}"
        drawn = plots.epoch_picture(arrays, f"{self.title}, {words}" if self.title else words)
        # The step that the epoch's scalars stand at.
        step = trainer.global_step - 1
        loggers.show(trainer.loggers, PICTURE, rasterise(drawn), self._history, step)


def rasterise(figure: Any) -> np.ndarray:
    """A matplotlib figure as bytes of shape ``(height, width, 3)``, without any window."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from rdm_solo.plots.style import STYLE

    canvas = FigureCanvasAgg(figure)
    with rc_context(STYLE):  # by which it was laid out
        canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()
