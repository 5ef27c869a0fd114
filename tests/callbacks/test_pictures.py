"""When pictures are drawn, and that none ends a run."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from conftest import features
from matplotlib.figure import Figure

from rdm_solo.callbacks import pictures
from rdm_solo.lightning import pl
from rdm_solo.loggers import charts
from rdm_solo.loggers.run_logger import RunLogger
from rdm_solo.runs import spectra_files
from rdm_solo.spectra import BranchSpectra


@pytest.fixture(scope="module")
def arrays():
    z = features("1/i", 64, 8, seed=0)
    metric = BranchSpectra(dim=8)
    metric.update(online=z, target=z, positive=z.roll(1, 0))
    return {name: array.numpy() for name, array in metric.compute().arrays().items()}


class Recorder(RunLogger):
    """A logger that keeps what it is given."""

    def __init__(self) -> None:
        self.pictures: list[int] = []  # steps
        self.charts: list[list[int]] = []  # epochs

    @classmethod
    def open(cls, run, earlier):
        return cls()

    def picture(self, name, image, step):
        assert (name, image.dtype, image.ndim) == (charts.PICTURE, np.uint8, 3)
        self.pictures.append(step)

    def spectra(self, epochs, step):
        self.charts.append(sorted(epochs))

    @classmethod
    def append(cls, folder, record, scalars, step):
        pass


def drawn(folder, arrays, every: int, epochs: int, measured=None, **changed) -> Recorder:
    """Train so many epochs of one step each, as far as the callback sees it."""
    logger, callback = Recorder(), pictures.Pictures(folder, every)
    trainer = SimpleNamespace(
        loggers=[logger], is_global_zero=True, max_epochs=epochs, max_steps=-1, should_stop=False
    )
    vars(trainer).update(changed)
    for epoch in range(epochs):
        trainer.current_epoch, trainer.global_step = epoch, epoch + 1
        if measured is None or epoch in measured:
            spectra_files.write(folder, epoch + 1, arrays)
        callback.on_train_epoch_end(trainer, None)
    return logger


@pytest.fixture
def blank(monkeypatch):
    monkeypatch.setattr("rdm_solo.plots.epoch_picture", lambda arrays, title: Figure((1, 1)))


@pytest.mark.parametrize(
    ("every", "measured", "steps"),
    [
        (10, None, [0, 10, 20, 23]),
        (10, range(0, 24, 4), [0, 20]),  # epochs that were not measured are not drawn
        (0, None, []),
    ],
)
def test_pictures_come_every_n_epochs_and_at_the_end(
    every, measured, steps, tmp_path, blank, arrays
):
    logger = drawn(tmp_path, arrays, every, 24, measured)
    assert logger.pictures == steps
    measured = range(24) if measured is None else measured
    assert logger.charts == [[e + 1 for e in measured if e <= step] for step in steps]


def test_an_epoch_that_ends_the_run_early_is_drawn(tmp_path, blank, arrays):
    logger = drawn(tmp_path, arrays, 10, 14, max_epochs=24, max_steps=14)
    assert logger.pictures == [0, 10, 13]


def test_only_the_first_process_draws_and_only_for_loggers_with_pictures(
    tmp_path, monkeypatch, arrays
):
    monkeypatch.setattr("rdm_solo.plots.epoch_picture", None)  # a call would fail
    assert drawn(tmp_path, arrays, 1, 2, is_global_zero=False).pictures == []
    drawn(tmp_path, arrays, 1, 2, loggers=[pl.loggers.CSVLogger(tmp_path)])


def test_a_picture_that_fails_is_a_warning(tmp_path, monkeypatch, caplog, arrays):
    def fail(arrays, title):
        raise RuntimeError("no ink")

    monkeypatch.setattr("rdm_solo.plots.epoch_picture", fail)
    assert drawn(tmp_path, arrays, 1, 3).pictures == []
    assert "no ink" in caplog.text
