"""Watch the model that a Hugging Face ``Trainer`` trains."""

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback  # type: ignore[import-not-found, unused-ignore]

from rdm_solo.observe.branches import Hook
from rdm_solo.observe.outputs import first_tensor
from rdm_solo.watch.loop import Watch


class WatchTrainerCallback(TrainerCallback):  # type: ignore[misc]
    """Watch the model that the ``Trainer`` trains; the options are those of :class:`Watch`.

    A step is an optimizer step. Its loss is the ``loss`` that the model returns. ``stop=True``
    ends the run at the first warning or note, as with :class:`WatchCallback`. A run that resumes
    from a checkpoint also resumes its folder.
    """

    def __init__(self, folder: str | Path, *, stop: bool = False, **options: Any) -> None:
        self.folder = folder
        self.stop = stop
        self.options = options
        self.watch: Any = None
        self._losses: list[Tensor] = []  # of this step's batches

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: nn.Module, **objects: Any
    ) -> None:
        if self.watch is not None:  # no callback runs after an exception
            self._close(RuntimeError("training did not finish"))
        options = {"seed": args.seed, **self.options}
        if state.num_train_epochs < sys.maxsize:  # otherwise the data have no length
            steps = math.ceil(state.max_steps / state.num_train_epochs)
            options = {"epochs": state.num_train_epochs, "steps_per_epoch": steps, **options}
        epochs = int(state.epoch or 0)
        if epochs:  # resumed from a checkpoint
            options["resume"] = epochs
        self.watch = Watch(self.folder, model, **options)
        self.watch.epoch = max(self.watch.epoch, epochs + 1)  # the folder may lack epochs
        self._loss_hook = model.register_forward_hook(Hook(model, self._add_loss))

    def _add_loss(self, inputs: Any, output: Any) -> None:
        """Keep a batch's loss, which the Trainer passes to no callback."""
        if isinstance(output, Mapping):
            output = output.get("loss")
        loss = first_tensor(output)
        if loss is None or loss.numel() > 1:  # the Trainer's compute_loss computes it
            return
        if self.watch.module.training:
            self._losses.append(loss.detach().clone())

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        loss = None
        if self._losses:
            # The replicas of DataParallel return one loss on each device.
            losses = [loss.to(args.device) for loss in self._losses]
            loss = torch.stack(losses).mean()
        self._losses.clear()
        self.watch.step(loss)
        self._stop_trainer(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        should_log = control.should_log
        self.watch.end_epoch()
        control.should_log = should_log  # log=trainer.log resets it
        self._stop_trainer(control)

    def _stop_trainer(self, control: Any) -> None:
        if self.stop and self.watch.stop_reason:
            control.should_training_stop = True
            self.watch.record_stop()

    def on_train_end(self, *event: Any, **objects: Any) -> None:
        self._close()

    def _close(self, error: BaseException | None = None) -> None:
        self._loss_hook.remove()
        self.watch.close(error)
        self.watch = None
