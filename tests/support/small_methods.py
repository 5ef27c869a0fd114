"""Small models of every method, and a batch for each."""

import torch
from omegaconf import OmegaConf

from rdm_solo import methods
from rdm_solo.methods.chosen_filter import shipped_filters
from rdm_solo.train import compose

FILTERS = list(shipped_filters())


def configure(*overrides: str, crops: tuple[int, int] = (2, 0)):
    cfg = compose(list(overrides))
    OmegaConf.set_struct(cfg, False)
    cfg.dataset.num_classes = 10
    cfg.dataset.num_large_crops, cfg.dataset.num_small_crops = crops
    return cfg


def make(*overrides: str, seed: int = 0, crops: tuple[int, int] = (2, 0)):
    torch.manual_seed(seed)
    return methods.build(configure(*overrides, crops=crops))


def batch(n: int = 16, views: int = 2, channels: int = 1, size: int = 8, small: int = 0):
    rng = torch.Generator().manual_seed(7)
    crops = [torch.randn(n, channels, size, size, generator=rng) for _ in range(views)]
    crops += [torch.randn(n, channels, size // 2, size // 2, generator=rng) for _ in range(small)]
    return torch.arange(n), crops, torch.randint(10, (n,), generator=rng)


def loss_of(model, data) -> torch.Tensor:
    model.train()
    return model.training_step(data, 0)
