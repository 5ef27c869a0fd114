"""When pictures are drawn, and that none ends a run."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from conftest import features
from matplotlib.figure import Figure

from rdm_solo.callbacks import Diagnostics, pictures
from rdm_solo.lightning import pl
from rdm_solo.loggers import RunLogger, charts
from rdm_solo.runs import spectra_files
from rdm_solo.spectra import BranchSpectra


def measure(seed: int):
    z = features("1/i", 64, 8, seed)
    metric = BranchSpectra(dim=8)
    metric.update(online=z, target=z, positive=z.roll(1, 0))
    return metric.compute()


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

    def close(self, failed):
        pass

    @classmethod
    def append(cls, folder, record, scalars, step):
        pass


def drawn(folder, every: int, epochs: int, measured=None, start: int = 0, **changed) -> Recorder:
    """Train so many epochs of one step each, as far as the callback sees it."""
    diagnostics, logger, callback = Diagnostics(folder), Recorder(), pictures.Pictures(every)
    trainer = SimpleNamespace(
        callbacks=[diagnostics],
        loggers=[logger],
        is_global_zero=True,
        max_epochs=epochs,
        max_steps=-1,
        should_stop=False,
        current_epoch=start,
    )
    vars(trainer).update(changed)
    for each in (diagnostics, callback):
        each.on_train_start(trainer, None)
    for epoch in range(start, epochs):
        trainer.current_epoch, trainer.global_step = epoch, epoch + 1
        diagnostics.on_train_epoch_start(trainer, None)
        if measured is None or epoch in measured:
            diagnostics.latest = measure(epoch)
        callback.on_train_epoch_end(trainer, None)
    return logger


@pytest.fixture
def blank(monkeypatch):
    monkeypatch.setattr("rdm_solo.plots.epoch_picture", lambda arrays, title: Figure((1, 1)))


@pytest.mark.parametrize(
    ("every", "measured", "steps"),
    [
        (10, None, [0, 10, 20, 23]),
        (10, range(0, 24, 4), [0, 12, 20]),  # measured more seldom, and not in the last epoch
        (0, None, []),
        (10, (), []),
    ],
)
def test_pictures_come_every_n_epochs_and_at_the_end(every, measured, steps, tmp_path, blank):
    assert drawn(tmp_path, every, 24, measured).pictures == steps


def test_an_epoch_that_ends_the_run_early_is_drawn(tmp_path, blank):
    assert drawn(tmp_path, 10, 14, max_epochs=24, max_steps=14).pictures == [0, 10, 13]


def test_only_the_first_process_draws_and_only_for_loggers_with_pictures(tmp_path, monkeypatch):
    monkeypatch.setattr("rdm_solo.plots.epoch_picture", None)  # a call would fail
    assert drawn(tmp_path / "other", 1, 2, is_global_zero=False).pictures == []
    drawn(tmp_path / "without", 1, 2, loggers=[pl.loggers.CSVLogger(tmp_path)])


def test_a_picture_that_fails_is_one_warning(tmp_path, monkeypatch, caplog):
    def fail(arrays, title):
        raise RuntimeError("no ink")

    monkeypatch.setattr("rdm_solo.plots.epoch_picture", fail)
    assert drawn(tmp_path, 1, 3).pictures == []
    assert len([record for record in caplog.records if "no ink" in record.message]) == 1


def test_a_resumed_runs_charts_begin_with_the_epochs_before(tmp_path, blank):
    arrays = {name: array.numpy() for name, array in measure(0).arrays().items()}
    for epoch in range(1, 13):
        spectra_files.write(tmp_path, epoch, arrays)
    logger = drawn(tmp_path, 10, 21, start=12)
    assert logger.pictures == [20]
    assert logger.charts == [[1, 11, 21]]


def test_a_run_that_diverges_in_its_first_epoch_has_nothing_to_draw(tmp_path, caplog):
    trainer = SimpleNamespace(is_global_zero=True)
    pictures.RankFigure(tmp_path, None).on_exception(trainer, None, FloatingPointError())
    assert (caplog.text, list(tmp_path.iterdir())) == ("", [])
