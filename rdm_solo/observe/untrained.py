"""Spectra of a network before its first step."""

import copy
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from rdm_solo.ground.lightning import pl
from rdm_solo.observe.epoch_spectra import EpochSpectra
from rdm_solo.observe.parts import observer

if TYPE_CHECKING:
    from rdm_solo.spectra import Spectra


def is_untrained(trainer: Any) -> bool:
    """Return whether no optimiser step has been taken yet."""
    return bool(trainer.global_step == 0)


def untrained_spectra(trainer: Any, module: Any, spectra: EpochSpectra) -> "Spectra | None":
    """Return the spectra of the training outputs before the first optimiser step.

    They are computed by a copy of the module with isolated random states, so that training is not
    affected. Return None with manual optimisation or several training loaders.
    """
    loader = trainer.train_dataloader
    if isinstance(loader, (Mapping, Sequence)) or not module.automatic_optimization:
        return None
    with torch.no_grad(), pl.utilities.seed.isolate_rng():
        model = _copy(module)
        model.trainer = trainer
        model.log = model.log_dict = lambda *args, **kwargs: None
        model.on_train_start()
        model.on_train_epoch_start()
        outputs = observer(model)
        spectra.begin_epoch()
        for step, batch in enumerate(loader):
            if not spectra.should_record(step, math.inf):
                break
            batch = trainer.strategy.batch_to_device(batch)
            outputs.record_next_step()
            with trainer.precision_plugin.train_step_context():
                result = model.training_step(batch, step)
            views = getattr(model, "num_large_crops", None)
            spectra.add(outputs.pop_outputs(views, result), outputs)
        return spectra.end_epoch(0, outputs)


def _copy(module: Any) -> Any:
    """Return a deep copy; deepcopy refuses tensors with a graph, such as weight_norm's weight."""
    values = [x for part in module.modules() for x in vars(part).values()]
    computed = [x for x in values if isinstance(x, torch.Tensor) and not x.is_leaf]
    return copy.deepcopy(module, {id(x): x.detach().clone() for x in computed})
