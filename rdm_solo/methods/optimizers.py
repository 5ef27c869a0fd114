"""Optimisers and the warm-up cosine schedule, the same for both versions of solo-learn."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

OPTIMIZERS: dict[str, Any] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
}


class WarmupCosine(LRScheduler):
    """Warm up linearly, then decay by a cosine to ``min_lr``; static groups keep their rate.

    The rates are solo-learn's, computed in closed form for each step. The state of solo-learn's own
    scheduler contains a ``functools.partial``, which ``weights_only`` refuses to load.

    >>> group = [torch.nn.Parameter(torch.zeros(1))]
    >>> schedule = WarmupCosine(torch.optim.SGD(group, lr=1.0), warmup=3, steps=7)
    >>> rates = []
    >>> for _ in range(7):
    ...     rates.append(round(schedule.get_last_lr()[0], 3))
    ...     schedule.optimizer.step(); schedule.step()
    >>> rates
    [0.0, 0.5, 1.0, 1.0, 0.854, 0.5, 0.146]
    """

    def __init__(
        self, optimizer: Optimizer, warmup: int, steps: int, start_lr: float = 0, min_lr: float = 0
    ) -> None:
        self.warmup, self.steps = warmup, steps
        self.start_lr, self.min_lr = start_lr, min_lr
        super().__init__(optimizer)

    def state_dict(self) -> dict[str, Any]:
        """Return only the step: rates come from the config, so that a run can be extended."""
        return {"last_epoch": self.last_epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.last_epoch = state_dict["last_epoch"]
        self._last_lr = self.get_lr()
        # The loaded optimiser state has the rates of the previous schedule.
        for group, base, rate in zip(self.optimizer.param_groups, self.base_lrs, self._last_lr):
            group["initial_lr"], group["lr"] = base, rate

    def get_lr(self) -> list[float | Tensor]:
        rates: list[float | Tensor] = []
        for base, group in zip(self.base_lrs, self.optimizer.param_groups):
            if group.get("static_lr"):
                rates.append(base)
            else:
                rates.append(self._rate(float(base), self.last_epoch))
        return rates

    def _rate(self, base: float, step: int) -> float:
        if step < self.warmup:
            return self.start_lr + (base - self.start_lr) * step / max(1, self.warmup - 1)
        share = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.min_lr + (base - self.min_lr) * (1 + math.cos(math.pi * min(1, share))) / 2


def configure(groups: Iterable[dict[str, Any]], cfg: DictConfig, steps: int) -> dict[str, Any]:
    """Return Lightning's optimiser dictionary for solo-learn's parameter groups.

    ``cfg.optimizer.lr`` and ``classifier_lr`` are already scaled by the global batch.
    """
    schedule = cfg.scheduler
    scheduler = WarmupCosine(
        _optimizer(_split(groups, cfg.optimizer.exclude_bias_n_norm), cfg.optimizer),
        warmup=round(schedule.warmup_epochs * steps / cfg.max_epochs),
        steps=steps,
        start_lr=schedule.warmup_start_lr,
        min_lr=schedule.min_lr,
    )
    return {
        "optimizer": scheduler.optimizer,
        "lr_scheduler": {"scheduler": scheduler, "interval": "step", "frequency": 1},
    }


def _split(groups: Iterable[dict[str, Any]], exclude_vectors: bool) -> list[dict[str, Any]]:
    """Return the groups that have parameters.

    With ``exclude_vectors``, biases and norms become groups of their own, without weight decay and
    LARS rescaling.
    """
    split = []
    for group in groups:
        parameters = list(group["params"])
        # LARS rescales the layers of groups with always_adapt.
        group = {"static_lr": False, "always_adapt": True, **group}
        vectors = []
        if exclude_vectors:
            vectors = [parameter for parameter in parameters if parameter.ndim <= 1]
            parameters = [parameter for parameter in parameters if parameter.ndim > 1]
        if parameters:
            split.append({**group, "params": parameters})
        if vectors:
            plain = {"params": vectors, "weight_decay": 0.0, "always_adapt": False}
            split.append({**group, **plain})
    return split


def _optimizer(groups: list[dict[str, Any]], settings: DictConfig) -> Optimizer:
    options: Any = OmegaConf.to_container(settings.kwargs)
    options |= {"lr": settings.lr, "weight_decay": settings.weight_decay}
    if settings.name in ("sgd", "lars"):
        options.setdefault("momentum", settings.momentum)
    if settings.name != "lars":
        optimizer: Optimizer = OPTIMIZERS[settings.name](groups, **options)
        return optimizer
    from timm.optim.lars import Lars  # slow import; solo-learn 1.0.2's LARS is not an Optimizer

    options |= {"trust_coeff": settings.trust_coeff, "trust_clip": settings.trust_clip}
    return Lars(groups, **options)
