"""Build the model that a config names."""

import functools
import pkgutil
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from rdm_solo.messages import UserError, check_number
from rdm_solo.methods import models, solo_learn
from rdm_solo.methods.chosen_filter import ChosenFilter
from rdm_solo.methods.descriptions import Method, method
from rdm_solo.methods.models import make_filter


def build(cfg: DictConfig) -> Any:
    """Return the model that a config names."""
    description, chosen = method(cfg.method.name), ChosenFilter.from_config(cfg)
    check_installed(description)
    solo_learn.check_backbone(cfg.backbone.name)
    check_kwargs(cfg.method.kwargs)
    if chosen.absent and not description.no_filter:
        raise UserError(
            f"method={description.name} needs a filter; filter=identity removes the predictor."
        )
    if not chosen.absent and description.no_filter:
        raise UserError(
            f"filter={chosen.name}: method={description.name} takes no filter, since "
            f"{description.no_filter}; leave filter out."
        )
    if chosen.absent:
        make_filter(chosen, cfg.max_epochs)  # refuses a p that would be ignored
    return method_class(description)(cfg)


def check_installed(description: Method) -> None:
    """Refuse a method that the installed solo-learn does not have."""
    if solo_learn.GENERATION not in description.versions:
        raise UserError(
            f"method={description.name} is not in solo-learn {solo_learn.version()}. Its main "
            "branch has it: put a checkout on PYTHONPATH (https://github.com/vturrisi/solo-learn)."
        )


def check_kwargs(kwargs: DictConfig) -> None:
    """Refuse text (Hydra passes ``no`` as text), negative numbers and unequal sets of clusters."""
    for key, value in kwargs.items():
        name = f"method.kwargs.{key}"
        if OmegaConf.is_list(value):  # the number of clusters in each set
            if len(set(value)) != 1:
                raise UserError(f"{name}={value} must all be equal, and at least one.")
            value = value[0]
        if not isinstance(value, bool):
            check_number(name, value, minimum=0, alternative="true or false")


@functools.cache
def method_class(description: Method) -> Any:
    """Return our class of a method, or solo-learn's with the mixins that its description needs."""
    if description.class_path:
        return pkgutil.resolve_name(f"rdm_solo.methods.{description.class_path}")
    bases: list[type] = [models.Configured]
    if not description.no_filter:
        heads = models.FilteredBYOL if description.momentum else models.FilteredSimSiam
        bases.insert(0, models.FilteredNeighbours if description.neighbours else heads)
    if description.momentum:
        bases.append(models.Momentum)
    base = solo_learn.adapt(description.name)
    attributes = {"__doc__": f"{description.label}, as in solo-learn.", "__module__": __name__}
    return type(base.__name__, (*bases, base), attributes)


def prepare(model: Any, cfg: DictConfig) -> Any:
    """Set the backbones' memory format and compile them; state-dict names do not change."""
    for backbone in filter(None, (model.backbone, getattr(model, "momentum_backbone", None))):
        if cfg.backbone.channels_last:
            backbone.to(memory_format=torch.channels_last)
        if cfg.backbone.compile:
            compiler = cfg.backbone.compile
            backbone.compile(backend=compiler if isinstance(compiler, str) else "inductor")
    return model
