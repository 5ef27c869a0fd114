"""When pictures are drawn, what they cost, and that none ends a run."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from conftest import features
from matplotlib.figure import Figure

from rdm_solo.callbacks import Diagnostics, pictures
from rdm_solo.lightning import pl
from rdm_solo.loggers import RunLogger, charts
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


class Trained:
    """The part of a trainer that the callback reads."""

    def __init__(self, folder, epochs: int, first: bool = True, resume=None) -> None:
        self.diagnostics = Diagnostics(folder, resume=resume)
        self.logger = Recorder()
        self.trainer = SimpleNamespace(
            callbacks=[self.diagnostics],
            loggers=[self.logger],
            is_global_zero=first,
            max_epochs=epochs,
            current_epoch=0,
            global_step=0,
            max_steps=-1,
            should_stop=False,
        )

    def run(self, callback: pictures.Pictures, measured: range, start: int = 0) -> list[int]:
        """The steps of the pictures; an epoch is one step."""
        trainer = self.trainer
        trainer.current_epoch = start
        for each in (self.diagnostics, callback):
            each.on_train_start(trainer, None)
        for epoch in range(start, trainer.max_epochs):
            trainer.current_epoch, trainer.global_step = epoch, epoch + 1
            self.diagnostics.on_train_epoch_start(trainer, None)
            if epoch in measured:
                self.diagnostics.latest = measure(epoch)
            callback.on_train_epoch_end(trainer, None)
        return self.logger.pictures


@pytest.mark.parametrize(
    ("every", "measured", "drawn"),
    [
        (10, range(24), [0, 10, 20, 23]),
        (10, range(0, 24, 4), [0, 12, 20]),  # measured more seldom, and not in the last epoch
        (0, range(24), []),
        (10, range(0), []),
    ],
)
def test_pictures_come_every_n_epochs_and_at_the_end(every, measured, drawn, tmp_path, monkeypatch):
    monkeypatch.setattr("rdm_solo.plots.epoch_picture", lambda arrays, title: Figure((1, 1)))
    assert Trained(tmp_path, 24).run(pictures.Pictures(every), measured) == drawn


def test_an_epoch_that_ends_the_run_early_is_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr("rdm_solo.plots.epoch_picture", lambda arrays, title: Figure((1, 1)))
    trained = Trained(tmp_path, 24)
    trained.trainer.max_steps = 14  # an epoch is one step
    assert trained.run(pictures.Pictures(10), range(14)) == [0, 10, 13]


def test_only_the_first_process_draws_and_only_for_loggers_with_pictures(
    tmp_path, monkeypatch, caplog
):
    other = Trained(tmp_path / "other", 2, first=False)
    assert other.run(pictures.Pictures(1), range(2)) == []
    without = Trained(tmp_path / "without", 2)
    without.trainer.loggers = [pl.loggers.CSVLogger(tmp_path)]
    monkeypatch.setattr("rdm_solo.plots.epoch_picture", None)  # a call would be a warning
    assert without.run(pictures.Pictures(1), range(2)) == []
    assert "could not be made" not in caplog.text


def test_a_picture_that_fails_is_one_warning(tmp_path, monkeypatch, caplog):
    def fail(arrays, title):
        raise RuntimeError("no ink")

    monkeypatch.setattr("rdm_solo.plots.epoch_picture", fail)
    assert Trained(tmp_path, 3).run(pictures.Pictures(1), range(3)) == []
    (told,) = [record.message for record in caplog.records if "no ink" in record.message]
    assert told.startswith("warning: the pictures of epoch 1 could not be made")


@pytest.mark.parametrize("requeued", [False, True])  # a job that SLURM starts again has no resume=
def test_a_resumed_runs_charts_begin_with_the_epochs_before(requeued, tmp_path):
    arrays = {name: array.numpy() for name, array in measure(0).arrays().items()}
    past = {name: np.stack([array] * 15) for name, array in arrays.items()}
    np.savez(tmp_path / "spectra.npz", epoch=np.arange(15), **past)
    folder, resume = (tmp_path, None) if requeued else (tmp_path / "run", tmp_path)
    folder.mkdir(exist_ok=True)
    trained = Trained(folder, 21, resume=resume)
    assert trained.run(pictures.Pictures(10), range(12, 21), start=12) == [20]
    assert trained.logger.charts == [[1, 11, 21]]


def test_a_run_that_diverges_in_its_first_epoch_has_nothing_to_draw(tmp_path, caplog):
    trainer = SimpleNamespace(is_global_zero=True)
    figure = pictures.RankFigure(tmp_path, None)
    figure.on_exception(trainer, None, FloatingPointError())
    assert (caplog.text, list(tmp_path.iterdir())) == ("", [])
