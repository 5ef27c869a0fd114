"""When pictures are drawn, and that none ends a run."""

from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure
from support.run_loggers import Recorder

from rdm_solo.callbacks import pictures
from rdm_solo.ground.lightning import pl
from rdm_solo.runs import spectra_files


def run_epochs(folder, every: int, epochs: int, measured=None, **attributes) -> Recorder:
    """Call the callback after each epoch of one step, and return its logger."""
    logger, callback = Recorder(), pictures.Pictures(folder, every)
    trainer = SimpleNamespace(
        loggers=[logger],
        is_global_zero=True,
        max_epochs=24,
        max_steps=-1,
        should_stop=False,
        num_training_batches=1,
        accumulate_grad_batches=1,
    )
    vars(trainer).update(attributes)
    for epoch in range(epochs):
        trainer.current_epoch = epoch
        trainer.global_step = epoch + 1
        if measured is None or epoch in measured:
            spectra_files.write(folder, epoch + 1, {"lam_online": np.full(4, 10.0**epoch)})
        callback.on_train_epoch_end(trainer, None)
    return logger


@pytest.mark.parametrize(
    ("every", "epochs", "measured", "steps"),
    [
        (10, 24, range(24), [0, 10, 20, 23]),
        (10, 24, range(0, 24, 4), [0, 20]),  # epochs that were not measured are not drawn
        (10, 14, range(14), [0, 10, 13]),  # the last step ends the run early
        (0, 24, range(24), []),
    ],
)
def test_pictures_come_every_n_epochs_and_at_the_end(
    every, epochs, measured, steps, tmp_path, monkeypatch
):
    monkeypatch.setattr("rdm_solo.plots.epoch_picture", lambda arrays, title: Figure((1, 1)))
    max_steps = 14 if epochs == 14 else -1
    logger = run_epochs(tmp_path, every, epochs, measured, max_steps=max_steps)
    assert logger.pictures == steps
    assert logger.logarithms == pytest.approx(steps)


def test_only_the_first_process_draws_and_a_picture_that_fails_is_a_warning(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr("rdm_solo.plots.epoch_picture", lambda arrays, title: 1 / 0)
    run_epochs(tmp_path, 1, 3, is_global_zero=False)
    run_epochs(tmp_path, 1, 3, loggers=[pl.loggers.CSVLogger(tmp_path)])  # it takes no pictures
    assert not caplog.text
    assert run_epochs(tmp_path, 1, 3).pictures == []
    assert "ZeroDivisionError" in caplog.text
