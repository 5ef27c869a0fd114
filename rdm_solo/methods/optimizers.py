"""Optimisers and the warm-up cosine schedule, the same for both versions of solo-learn."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


class WarmupCosine(LRScheduler):
    """Warm up linearly, then decay by a cosine to ``min_lr``; groups with ``static_lr`` stay.

    The rates are solo-learn's, computed in closed form for each step. The state of solo-learn's own
    scheduler contains a ``functools.partial``, which ``weights_only`` refuses to load.

    >>> groups = [
    ...     {"params": [torch.nn.Parameter(torch.zeros(1))]},
    ...     {"params": [torch.nn.Parameter(torch.zeros(1))], "static_lr": True},
    ... ]
    >>> schedule = WarmupCosine(torch.optim.SGD(groups, lr=1.0), warmup=3, steps=7)
    >>> rates = []
    >>> for _ in range(7):
    ...     rates.append([round(rate, 3) for rate in schedule.get_last_lr()])
    ...     schedule.optimizer.step(); schedule.step()
    >>> rates
    [[0.0, 1.0], [0.5, 1.0], [1.0, 1.0], [1.0, 1.0], [0.854, 1.0], [0.5, 1.0], [0.146, 1.0]]
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
        for group, rate in zip(self.optimizer.param_groups, self._last_lr):
            group["lr"] = rate

    def get_lr(self) -> list[float | Tensor]:
        step = self.last_epoch
        rates: list[float | Tensor] = []
        for base, group in zip(self.base_lrs, self.optimizer.param_groups):
            if group.get("static_lr"):
                rate = base
            elif step < self.warmup:
                rise = base - self.start_lr
                rate = self.start_lr + rise * step / max(1, self.warmup - 1)
            else:
                share = min(1, (step - self.warmup) / max(1, self.steps - self.warmup))
                fall = base - self.min_lr
                rate = self.min_lr + fall * (1 + math.cos(math.pi * share)) / 2
            rates.append(rate)
        return rates


def configure(groups: Iterable[dict[str, Any]], cfg: DictConfig, steps: int) -> dict[str, Any]:
    """Return Lightning's optimiser dictionary for solo-learn's parameter groups.

    ``cfg.optimizer.lr`` and ``classifier_lr`` are already scaled by the global batch.
    """
    # Imported late, since solo_learn.py checks first that timm is installed. solo-learn 1.0.2's own
    # LARS is no torch Optimizer.
    from timm.optim.lars import Lars

    settings = cfg.optimizer
    options: Any = OmegaConf.to_container(settings.kwargs)
    options |= {"lr": settings.lr, "weight_decay": settings.weight_decay}
    if settings.name in ("sgd", "lars"):
        options.setdefault("momentum", settings.momentum)
    if settings.name == "lars":
        options |= {"trust_coeff": settings.trust_coeff, "trust_clip": settings.trust_clip}
    if settings.fused:
        options.setdefault("fused", True)
    classes: dict[str, Any] = {
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "lars": Lars,
        "sgd": torch.optim.SGD,
    }
    split = _split(groups, settings.exclude_bias_n_norm)
    optimizer = classes[settings.name](split, **options)

    schedule = cfg.scheduler
    scheduler = WarmupCosine(
        optimizer,
        warmup=round(schedule.warmup_epochs * steps / cfg.max_epochs),
        steps=steps,
        start_lr=schedule.warmup_start_lr,
        min_lr=schedule.min_lr,
    )
    return {
        "optimizer": optimizer,
        "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
    }


def _split(groups: Iterable[dict[str, Any]], exclude_vectors: bool) -> list[dict[str, Any]]:
    """Return the groups that have parameters.

    With ``exclude_vectors``, biases and norms become groups of their own, without weight decay and
    LARS rescaling.
    """
    split = []
    for group in groups:
        # LARS rescales the layers of groups with always_adapt.
        group = {"static_lr": False, "always_adapt": True, **group}
        matrices = []
        vectors = []
        for parameter in group["params"]:
            if exclude_vectors and parameter.ndim <= 1:
                vectors.append(parameter)
            else:
                matrices.append(parameter)
        if matrices:
            split.append({**group, "params": matrices})
        if vectors:
            plain = {"params": vectors, "weight_decay": 0.0, "always_adapt": False}
            split.append({**group, **plain})
    return split
