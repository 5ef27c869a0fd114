"""Log to TensorBoard and W&B what metrics.csv does not hold: single steps, verdicts, warnings."""

import math
from abc import abstractmethod
from typing import Any

from rdm_solo.callbacks.diagnostics import CollapseWatch
from rdm_solo.collapse.alarm import Alarm
from rdm_solo.collapse.health import health
from rdm_solo.collapse.rules import RULE, Bounds
from rdm_solo.ground.lightning import pl
from rdm_solo.loggers.run_logger import VERDICT, VERDICTS, RunLogger


class RunEnd(pl.Callback):
    """A callback that acts on the first process once the summary of a finished run is written.

    Lightning's hooks come before it, and its loggers are open until then.
    """

    @abstractmethod
    def on_run_end(self, trainer: Any) -> None:
        """Act. It must not raise: the run has finished."""


class Health(pl.Callback):
    """Log the verdict on the run after each epoch, and each new warning, to the loggers.

    It judges the epochs of :class:`CollapseWatch`, so it comes after it in the list. The bounds are
    the defaults, as in the report.
    """

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self.alarm: Alarm | None = None
        for callback in trainer.callbacks:
            if isinstance(callback, CollapseWatch):
                self.alarm = callback.alarm
                self.sent = len(callback.alarm.warnings)  # by an earlier start

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self.alarm is None or not trainer.loggers:  # only the first process has loggers
            return
        bounds = Bounds(warmup=self.alarm.bounds.warmup, gap_epochs=None)
        outcome = health(self.alarm.epochs, bounds)
        scalars = {VERDICT: VERDICTS[outcome.level], "epoch": trainer.current_epoch}
        step = trainer.global_step - 1  # the step of the epoch's scalars
        for logger in trainer.loggers:
            logger.log_metrics(scalars, step)
            if isinstance(logger, RunLogger):
                for warning in self.alarm.warnings[self.sent :]:
                    kind = warning["kind"]
                    logger.alert(kind, warning["text"], RULE[kind].note, step)
        self.sent = len(self.alarm.warnings)


class StepScalars(pl.Callback):
    """Log the loss and the backbone's learning rate of every n-th step to the loggers.

    Lightning's LearningRateMonitor refuses a run without loggers, and its names depend on the
    optimiser. ``self.log`` takes a tenth of a small network's step, in every step.
    """

    def __init__(self, every_n_steps: int = 50) -> None:
        self.every_n_steps = every_n_steps
        self.lr = math.nan  # of the current step
        self.last_step = 0  # the last one that was logged

    def on_train_batch_start(self, trainer: Any, *args: Any) -> None:
        if trainer.loggers:  # only on the first process; at the step's end the rate has changed
            self.lr = trainer.optimizers[0].param_groups[0]["lr"]

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        step = trainer.global_step  # the number of optimiser steps so far
        if not trainer.loggers or not self.every_n_steps or step % self.every_n_steps:
            return
        # The batches of an accumulated step have the same number.
        if step == self.last_step or pl_module.step_loss is None:
            return
        self.last_step = step
        scalars = {"train/loss_step": float(pl_module.step_loss), "train/lr": self.lr}
        for logger in trainer.loggers:
            logger.log_metrics(scalars, step - 1)
