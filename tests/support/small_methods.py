"""Small models of every method, and a batch for each."""

import sys
from pathlib import Path

import torch
from omegaconf import OmegaConf
from torch.nn.functional import cross_entropy

from rdm_solo import methods
from rdm_solo.methods import solo_learn, weight_files
from rdm_solo.methods.chosen_filter import shipped_filters
from rdm_solo.train import compose

FILTERS = list(shipped_filters())
# Sizes smaller than in our configs, for methods that have the option.
SIZES = {
    "proj_hidden_dim": 32,
    "proj_output_dim": 16,
    "pred_hidden_dim": 16,
    "queue_size": 64,
    "num_prototypes": 24,
}


def configure(*overrides: str, crops: tuple[int, int] = (2, 0)):
    cfg = compose(list(overrides))
    OmegaConf.set_struct(cfg, False)
    cfg.dataset.num_classes = 10
    cfg.dataset.num_large_crops, cfg.dataset.num_small_crops = crops
    return cfg


def make(*overrides: str, crops: tuple[int, int] = (2, 0)):
    torch.manual_seed(0)
    return with_sinkhorn(methods.build(configure(*overrides, crops=crops)))


def with_sinkhorn(model):
    """Add SwAV's Sinkhorn, which solo-learn adds when training starts."""
    if hasattr(model, "sk_iters"):
        sinkhorn = sys.modules["solo.methods.swav"].SinkhornKnopp
        model.sk = sinkhorn(model.sk_iters, model.sk_epsilon)
    return model


def foreign(name: str):
    """Return a small model of the installed solo-learn's own class."""
    cfg = configure(
        f"method={name}", "backbone.name=resnet18", "backbone.kwargs.zero_init_residual=false"
    )
    for option, size in SIZES.items():
        if cfg.method.kwargs.get(option):
            cfg.method.kwargs[option] = size
    torch.manual_seed(0)
    method_class = solo_learn.TABLE[name]
    if solo_learn.CURRENT:
        model = method_class(solo_learn.current_config(cfg))
    else:
        model = method_class(**solo_learn.legacy_arguments(cfg))
    return with_sinkhorn(model)


def load(path: Path, spec: weight_files.Spec | None = None) -> torch.nn.Module:
    """Return the backbone in a file; by default ``spec`` is read from the file."""
    weights = weight_files.read(path)
    return weight_files.load(weights, spec or weight_files.spec_of(weights))


def batch(n: int = 16, views: int = 2, channels: int = 1, size: int = 8, small: int = 0):
    rng = torch.Generator().manual_seed(7)
    sides = [size] * views + [size // 2] * small
    crops = [torch.randn(n, channels, side, side, generator=rng) for side in sides]
    labels = torch.randint(10, (n,), generator=rng)
    return torch.arange(n), crops, labels


def loss_of(model, data) -> torch.Tensor:
    model.train()
    return model.training_step(data, 0)


def classifier_loss(model, data) -> torch.Tensor:
    """Compute the online classifier's loss of the two large views."""
    _, views, labels = data
    network = torch.nn.Sequential(model.backbone, model.classifier)
    losses = [cross_entropy(network(view), labels) for view in views[:2]]
    return sum(losses) / 2
