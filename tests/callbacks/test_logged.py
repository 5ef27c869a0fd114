"""Which steps the loggers get."""

from types import SimpleNamespace

import pytest

from rdm_solo.callbacks import StepScalars


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
