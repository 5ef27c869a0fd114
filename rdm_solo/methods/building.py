"""Build the model that a config names."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from rdm_solo.messages import UserError, check_number, check_switch, check_whole
from rdm_solo.methods import optimizers, solo_learn
from rdm_solo.methods.chosen_filter import ChosenFilter
from rdm_solo.methods.descriptions import Method, method
from rdm_solo.methods.filtered import make_filter
from rdm_solo.methods.models import BYOL, DINO, WMSE, DeepClusterV2, SimSiam, SwAV, of_solo_learn
from rdm_solo.methods.symmetric import SymSimSiam

# Methods that need a class of their own; the others are created from their descriptions.
CLASSES: dict[str, Any] = {
    "simsiam": SimSiam,
    "byol": BYOL,
    "swav": SwAV,
    "dino": DINO,
    "deepclusterv2": DeepClusterV2,
    "wmse": WMSE,
    "symsimsiam": SymSimSiam,
    "vanilla": SymSimSiam,
}


def build(cfg: DictConfig) -> Any:
    """Return the model that a config names."""
    described, chosen = method(cfg.method.name), ChosenFilter.of(cfg)
    check_installed(described)
    solo_learn.check_backbone(cfg.backbone.name)
    check_kwargs(cfg.method.kwargs)
    optimizers.check_kwargs(cfg.optimizer)
    if chosen.absent and not described.no_filter:
        raise UserError(
            f"filter=none is not for method={described.name}: filter=identity removes its "
            "predictor, filter=learnable keeps it."
        )
    if not chosen.absent and described.no_filter:
        raise UserError(
            f"filter={chosen.name}: method={described.name} has no place for a filter, since "
            f"{described.no_filter}; leave filter out."
        )
    if chosen.absent:
        make_filter(chosen, cfg.max_epochs)  # refuses a p that would be ignored
    try:
        return (CLASSES.get(described.name) or of_solo_learn(described))(cfg)
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


# The checks of solo-learn's arguments, by the ends of their names.
CHECKS: dict[tuple[str, ...], Callable[[str, Any], object]] = {
    # Two layers of the largest size in a row are 4 GB of weights.
    ("_dim",): partial(check_whole, least=1, most=2**15),
    ("num_prototypes",): partial(check_whole, least=1, most=2**20),
    ("kmeans_iters", "whitening_iters", "whitening_size"): partial(check_whole, least=1),
    ("sk_iters", "queue_size", "epoch_queue_starts"): check_whole,
    ("freeze_prototypes_epochs", "freeze_last_layer"): check_whole,
    ("clip_grad", "whitening_eps", "lamb"): partial(check_number, least=0),
    ("scale_loss", "_loss_weight"): partial(check_number, least=0),
    ("temperature", "temperature_q", "temperature_k"): partial(check_number, above=0),
    ("sk_epsilon",): partial(check_number, above=0),
    ("norm_last_layer", "use_bn_in_head", "iternorm"): check_switch,
}


def check_kwargs(kwargs: DictConfig) -> None:
    """Refuse values that no model can have."""
    for key, value in kwargs.items():
        name = f"method.kwargs.{key}"
        if key == "num_prototypes" and OmegaConf.is_list(value):  # one number per set of clusters
            if len(set(value)) != 1:
                raise UserError(f"{name}={value} must all be equal, and at least one.")
            value = value[0]
        for ends, check in CHECKS.items():
            if key.endswith(ends):
                check(name, value)


def prepare(model: Any, cfg: DictConfig) -> Any:
    """Set memory layout and compilation of the backbones; names in the state dict stay."""
    for backbone in filter(None, (model.backbone, getattr(model, "momentum_backbone", None))):
        if cfg.backbone.channels_last:
            backbone.to(memory_format=torch.channels_last)
        if cfg.backbone.compile:
            named = isinstance(cfg.backbone.compile, str)
            backbone.compile(backend=cfg.backbone.compile if named else "inductor")
    return model
