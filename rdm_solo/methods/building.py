"""Build the model that a config names."""

import functools
import pkgutil
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from rdm_solo.ground.errors import UserError
from rdm_solo.ground.values import check_number
from rdm_solo.methods import models, solo_learn
from rdm_solo.methods.descriptions import Method, method


def build(cfg: DictConfig) -> Any:
    """Return the model that a config names."""
    description = method(cfg.method.name)
    check_installed(description)
    solo_learn.check_backbone(cfg.backbone.name)
    check_kwargs(cfg.method.kwargs)
    return method_class(description)(cfg)


def check_installed(description: Method) -> None:
    """Raise UserError if the installed solo-learn does not have the method."""
    if solo_learn.GENERATION not in description.versions:
        raise UserError(
            f"method={description.name} is not in solo-learn {solo_learn.version()}. Its main "
            "branch has it: put a checkout on PYTHONPATH (https://github.com/vturrisi/solo-learn)."
        )


def check_kwargs(kwargs: DictConfig) -> None:
    """Refuse text (Hydra passes ``no`` as text), negative numbers and unequal cluster counts."""
    for key, value in kwargs.items():
        name = f"method.kwargs.{key!s}"
        if OmegaConf.is_list(value):  # the number of clusters in each set
            if len(set(value)) != 1:
                raise UserError(f"{name}={value}: at least one number, and they must all be equal.")
            value = value[0]
        if not isinstance(value, bool):
            check_number(name, value, minimum=0, alternative="true or false")


@functools.cache
def method_class(description: Method) -> Any:
    """Return our class for a method, or solo-learn's with the mixins that the method needs."""
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
    """Apply the config's memory format and compiler; state-dict names do not change."""
    for backbone in filter(None, (model.backbone, getattr(model, "momentum_backbone", None))):
        if cfg.backbone.channels_last:
            backbone.to(memory_format=torch.channels_last)
        if cfg.backbone.compile:
            compiler = cfg.backbone.compile
            backbone.compile(backend=compiler if isinstance(compiler, str) else "inductor")
    return model
