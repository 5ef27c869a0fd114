"""From a config to a model: the class that it names, its values checked."""

from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from rdm_solo.messages import UserError, check_number, check_switch, check_whole
from rdm_solo.methods import optimizers, solo_learn
from rdm_solo.methods.chosen_filter import ChosenFilter
from rdm_solo.methods.descriptions import METHODS, Method, method
from rdm_solo.methods.models import (
    BYOL,
    DINO,
    WMSE,
    DeepClusterV2,
    SimSiam,
    SwAV,
    make_filter,
    of_solo_learn,
)
from rdm_solo.methods.symmetric import SymSimSiam

# By name, as descriptions give it.
CLASSES = {
    known.__name__: known for known in (SimSiam, BYOL, SwAV, DINO, DeepClusterV2, WMSE, SymSimSiam)
}

# The largest number of units of a layer: two such layers in a row are 4 GB of weights.
MOST_UNITS = 2**15
# Of solo-learn's own arguments.
WHOLE = (
    *("sk_iters", "queue_size", "epoch_queue_starts"),
    *("freeze_prototypes_epochs", "freeze_last_layer"),
)
AT_LEAST_ONE = ("kmeans_iters", "whitening_iters", "whitening_size")
NOT_NEGATIVE = (
    *("clip_grad", "whitening_eps", "lamb", "scale_loss"),
    *("sim_loss_weight", "var_loss_weight", "cov_loss_weight"),
)
SWITCHES = ("norm_last_layer", "use_bn_in_head", "iternorm")


def build(cfg: DictConfig) -> Any:
    """The method that a config names."""
    described, chosen = method(cfg.method.name), ChosenFilter.of(cfg)
    check_installed(described)
    solo_learn.check_backbone(cfg.backbone.name)
    check_kwargs(cfg.method.kwargs)
    optimizers.check_kwargs(cfg.optimizer)
    if chosen.absent and not described.no_filter:
        raise UserError(
            f"filter=none is not for method={described.name}: take filter=identity for no "
            "predictor, or filter=learnable for its own predictor."
        )
    if not chosen.absent and described.no_filter:
        others = " or ".join(f"method={m.name}" for m in METHODS.values() if not m.no_filter)
        raise UserError(
            f"filter={chosen.name}: method={described.name} has no place for one, since "
            f"{described.no_filter}; leave filter out, or choose {others}."
        )
    if chosen.absent:
        make_filter(chosen, cfg.max_epochs)  # refuses a p that nothing would use
    try:
        made = CLASSES.get(described.class_name) or of_solo_learn(described)
        return made(cfg)
    except TypeError as error:
        raise UserError(
            f"method={described.name} with backbone.name={cfg.backbone.name} cannot be built: "
            f"{error}; look at backbone.kwargs and method.kwargs."
        ) from error


def check_installed(described: Method) -> None:
    """Refuse a method that the installed solo-learn does not have."""
    if solo_learn.GENERATION not in described.versions:
        raise UserError(
            f"method={described.name}: {described.label} is not in solo-learn "
            f"{solo_learn.version()}, but in its current main; put a checkout of it on PYTHONPATH "
            "(git clone https://github.com/vturrisi/solo-learn)."
        )


def check_kwargs(kwargs: DictConfig) -> None:
    """Refuse values that no model can have."""
    for key, value in kwargs.items():
        name = f"method.kwargs.{key}"
        if key.endswith("_dim"):
            check_whole(name, value, 1, MOST_UNITS)
        elif key == "num_prototypes":
            numbers = value if OmegaConf.is_list(value) else [value]
            for number in numbers:
                check_whole(name, number, 1, 2**20)
            if len(set(numbers)) != 1:
                raise UserError(f"{name}={value} must all be equal, and at least one.")
        elif key in WHOLE:
            check_whole(name, value)
        elif key in SWITCHES:
            check_switch(name, value)
        elif key in AT_LEAST_ONE:
            check_whole(name, value, 1)
        elif key in NOT_NEGATIVE:
            check_number(name, value, 0)
        elif key.endswith(("temperature", "temperature_q", "temperature_k", "sk_epsilon")):
            check_number(name, value, above=0)


def prepare(model: Any, cfg: DictConfig) -> Any:
    """Memory layout and compilation of the backbones; names in the state dict stay."""
    for backbone in filter(None, (model.backbone, getattr(model, "momentum_backbone", None))):
        if cfg.backbone.channels_last:
            backbone.to(memory_format=torch.channels_last)
        if cfg.backbone.compile:
            named = isinstance(cfg.backbone.compile, str)
            backbone.compile(backend=cfg.backbone.compile if named else "inductor")
    return model
