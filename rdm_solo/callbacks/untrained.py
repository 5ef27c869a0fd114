"""Measure a network before its first step."""

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rdm_solo.ground.lightning import pl
from rdm_solo.observe.parts import observer
from rdm_solo.observe.recorder import EpochRow, Recorder


def is_untrained(trainer: Any) -> bool:
    """Return whether no optimiser step has been taken yet."""
    return bool(trainer.global_step == 0)


def untrained_row(trainer: Any, module: Any, recorder: Recorder) -> EpochRow:
    """Measure the training outputs before the first optimiser step and return them as epoch 0.

    They are computed by a copy of the module with isolated random states, so that training is not
    affected. The row is empty with manual optimisation or several training loaders.
    """
    loader = trainer.train_dataloader
    if isinstance(loader, (Mapping, Sequence)) or not module.automatic_optimization:
        return EpochRow(0, {})
    with torch.no_grad(), pl.utilities.seed.isolate_rng():
        model = _copy(module)
        model.trainer = trainer
        model.log = model.log_dict = lambda *args, **kwargs: None
        model.on_train_start()
        model.on_train_epoch_start()
        recorder = copy.copy(recorder)  # shares _warned: training does not repeat a warning
        recorder.observer = observer(model)
        for step, batch in enumerate(loader):
            if not recorder.before_step(step, math.inf):
                break
            batch = trainer.strategy.batch_to_device(batch)
            with trainer.precision_plugin.train_step_context():
                outputs = model.training_step(batch, step)
            recorder.after_step(outputs)
            if not recorder.was_measured:  # DeepCluster v2 has no targets before its first epoch
                break
        return recorder.end_epoch(0)


def _copy(module: Any) -> Any:
    """Return a deep copy; deepcopy refuses tensors with a graph, such as weight_norm's weight."""
    copies = {}
    for part in module.modules():
        for value in vars(part).values():
            if isinstance(value, torch.Tensor) and not value.is_leaf:
                copies[id(value)] = value.detach().clone()
    return copy.deepcopy(module, copies)
