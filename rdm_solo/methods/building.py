"""Build the model that a config names."""

import pkgutil
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from rdm_solo.ground.errors import UserError
from rdm_solo.ground.values import check_number
from rdm_solo.methods import solo_learn
from rdm_solo.methods.descriptions import method

# torch.compile's modes; other names are backends.
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def build(cfg: DictConfig, labelled: bool = True) -> Any:
    """Return the model that a config names, such as ``models.SimSiam`` for ``simsiam``.

    Without labels, it logs no accuracies.
    """
    description = method(cfg.method.name)
    if solo_learn.GENERATION not in description.versions:
        raise UserError(
            f"method={description.name} is not in solo-learn {solo_learn.version()}. Its main "
            "branch has it: put a checkout on PYTHONPATH (https://github.com/vturrisi/solo-learn)."
        )
    solo_learn.check_backbone(cfg.backbone.name)
    check_kwargs(cfg.method.kwargs)
    if description.class_path:
        model_class = pkgutil.resolve_name(f"rdm_solo.methods.{description.class_path}")
    else:
        model_class = solo_learn.adapt(description.name)
    try:
        model = model_class(cfg)
    except TypeError as error:
        if "keyword argument" not in str(error):
            raise
        raise UserError(
            f"backbone.name={cfg.backbone.name} with these backbone.kwargs: {error}."
        ) from error
    model.labelled = labelled
    return model


def check_kwargs(kwargs: DictConfig) -> None:
    """Refuse text (Hydra passes ``no`` as text) and negative numbers."""
    for key, value in kwargs.items():
        values = value if OmegaConf.is_list(value) else [value]
        for number in values:
            if not isinstance(number, bool):
                check_number(f"method.kwargs.{key!s}", number, 0, alternative="true or false")


def prepare(model: Any, channels_last: bool, compiler: bool | str) -> None:
    """Apply a memory format and a compiler; state-dict names do not change."""
    backbones = [model.backbone]
    if hasattr(model, "momentum_backbone"):
        backbones.append(model.momentum_backbone)
    for backbone in backbones:
        if channels_last:
            backbone.to(memory_format=torch.channels_last)
        if compiler in MODES:
            backbone.compile(mode=compiler)
        elif compiler:
            backbone.compile(backend="inductor" if compiler is True else compiler)
