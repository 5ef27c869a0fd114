"""Which steps and warnings the loggers get."""

from types import SimpleNamespace

import pytest
from support.run_loggers import Recorder

from rdm_solo.callbacks import CollapseWatch, Health, StepScalars
from rdm_solo.collapse.rules import COMPLETE, DESTROYED


def logged_steps(every: int, accumulated: int) -> list[int]:
    """Return the steps that are logged in ten optimiser steps of several batches."""
    steps: list[int] = []
    logger = SimpleNamespace(log_metrics=lambda scalars, step: steps.append(step))
    trainer = SimpleNamespace(
        loggers=[logger], optimizers=[SimpleNamespace(param_groups=[{"lr": 0.1}])]
    )
    callback = StepScalars(every)
    for batch in range(10 * accumulated):
        callback.on_train_batch_start(trainer)
        trainer.global_step = (batch + 1) // accumulated
        callback.on_train_batch_end(trainer, SimpleNamespace(step_loss=-0.5))
    return steps


@pytest.mark.parametrize(("every", "steps"), [(4, [3, 7]), (0, [])])
@pytest.mark.parametrize("accumulated", [1, 3])
def test_every_nth_step_is_logged_once(every, accumulated, steps):
    assert logged_steps(every, accumulated) == steps


def test_each_warning_is_an_alert_once_over_two_starts():
    logger = Recorder()
    watch = CollapseWatch(lambda *_, **__: "", 0, {"stop": False})
    for start in range(2):
        callback = Health()
        trainer = SimpleNamespace(callbacks=[watch, callback], loggers=[logger])
        callback.on_fit_start(trainer, None)
        for epoch in range(3):
            trainer.current_epoch = 3 * start + epoch
            trainer.global_step = 10 * (trainer.current_epoch + 1)
            if epoch == 1:
                kind = (COMPLETE, DESTROYED)[start]
                watch.alarm.warnings.append({"kind": kind, "epoch": 2, "text": "why"})
            callback.on_train_epoch_end(trainer, None)
    assert logger.alerts == [(COMPLETE, True, 19), (DESTROYED, False, 49)]
