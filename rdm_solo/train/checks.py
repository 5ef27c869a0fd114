"""Refuses, in one sentence, values that no run could use."""

from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from rdm_solo.filters.schedules import as_schedule
from rdm_solo.messages import check_choice, check_number, check_switch, check_whole, suggest
from rdm_solo.methods.optimizers import OPTIMIZERS
from rdm_solo.train.warm_ups import WARM_UPS

# Half- and double-precision weights are refused: batch norms and spectra want float32 ones.
PRECISIONS = ("32-true", "16-mixed", "bf16-mixed")

# Each option with what checks it, and the limits.
CHECKS: dict[str, tuple[Any, ...]] = {
    "batch_size": (check_whole, 2),
    "max_epochs": (check_whole, 1),
    "threads": (check_whole, 1),
    "seed": (check_whole, 0, 2**32 - 1),
    "knn.k": (check_whole, 1),
    "knn.every_n_epochs": (check_whole, 0),
    "knn.temperature": (check_number, 1e-6),
    "diagnostics.max_rows": (check_whole, 1),
    "diagnostics.max_dim": (check_whole, 1),
    "diagnostics.sample": (check_whole, 1),
    "diagnostics.every_n_epochs": (check_whole, 0),
    "pictures.every_n_epochs": (check_whole, 0),
    "optimizer.name": (check_choice, OPTIMIZERS),
    "optimizer.lr": (check_number, 0),
    "optimizer.classifier_lr": (check_number, 0),
    "optimizer.weight_decay": (check_number, 0),
    "optimizer.momentum": (check_number, 0),
    "optimizer.trust_coeff": (check_number, 0),
    "optimizer.trust_clip": (check_switch,),
    "optimizer.exclude_bias_n_norm": (check_switch,),
    "scheduler.warmup_epochs": (check_number, 0),
    "scheduler.warmup_start_lr": (check_number, 0),
    "scheduler.min_lr": (check_number, 0),
    "backbone.stem": (check_choice, ("small", "imagenet")),
    "backbone.channels_last": (check_switch,),
    "trainer.precision": (check_choice, PRECISIONS),
    "trainer.accumulate_grad_batches": (check_whole, 1),
    "trainer.num_nodes": (check_whole, 1),
    "trainer.enable_progress_bar": (check_switch,),
    "watch.variance": (check_number, 0, 1),
    "watch.erank": (check_number, 0, 1),
    "watch.gap_epochs": (check_whole, 0),
    "watch.stop": (check_switch,),
}
# Options that may be null (older configs lack threads), and what that does.
OR_NULL = {"threads": "null to let the run decide"}
OR_NULL |= {
    f"watch.{name}": "null to switch it off" for name in ("variance", "erank", "gap_epochs")
}
# Arguments of Lightning's Trainer that options of the same name give.
SET_ELSEWHERE = ("max_epochs", "callbacks", "logger")


def check(cfg: DictConfig) -> None:
    """Refuse, in one sentence, what no run could use."""
    for name, (check_value, *limits) in CHECKS.items():
        value = OmegaConf.select(cfg, name)
        if name not in OR_NULL:
            check_value(name, value, *limits)
        elif value is not None:
            check_value(name, value, *limits, alternative=OR_NULL[name])
    for name in WARM_UPS:
        epochs = check_number(name, OmegaConf.select(cfg, name) or 0, 0)
        if epochs > cfg.max_epochs:
            raise ValueError(
                f"{name}={epochs:g} is longer than max_epochs={cfg.max_epochs}; shorten it."
            )
    for name in ("base_tau", "final_tau") if "momentum" in cfg.method else ():
        check_number(f"method.momentum.{name}", cfg.method.momentum[name], 0, 1)
    if cfg.watch.stop and not cfg.diagnostics.every_n_epochs:
        raise ValueError(
            "watch.stop=true would be ignored: diagnostics.every_n_epochs=0 measures nothing that "
            "could be watched; leave one of them out."
        )
    _check_backbone(cfg.backbone)
    _check_clipping(cfg)
    _check_trainer(cfg.trainer)
    if cfg.p is not None:
        p = OmegaConf.to_container(cfg.p) if OmegaConf.is_config(cfg.p) else cfg.p
        as_schedule(p, epochs=cfg.max_epochs)


def _check_clipping(cfg: DictConfig) -> None:
    """Of DINO: solo-learn would clip scaled or partial gradients without a word."""
    scaled = cfg.trainer.precision == "16-mixed" or cfg.trainer.accumulate_grad_batches > 1
    if scaled and cfg.method.kwargs.get("clip_grad"):
        raise ValueError(
            f"method.kwargs.clip_grad={cfg.method.kwargs.clip_grad} clips before float16's scale "
            "is taken off and before gradients are summed up; use trainer.gradient_clip_val, or "
            "leave 16-mixed and accumulation."
        )


def _check_backbone(backbone: DictConfig) -> None:
    if not isinstance(backbone.name, str):
        raise ValueError(f"backbone.name must be a name such as resnet18, got {backbone.name!r}.")
    if isinstance(backbone.compile, str):
        from torch._dynamo import list_backends

        known = list_backends(exclude_tags=("experimental",))
        if backbone.compile not in known:
            raise ValueError(
                f"backbone.compile must be true, false, or one of {', '.join(known)}, "
                f"got {backbone.compile!r}{suggest(backbone.compile, known) or '.'}"
            )


def _check_trainer(trainer: DictConfig) -> None:
    for name in SET_ELSEWHERE:
        if name in trainer:
            raise ValueError(f"trainer.{name} is set by the run itself; use {name}=...")
    accelerator, devices = trainer.accelerator, trainer.devices
    if accelerator not in ("auto", "cpu", "gpu", "cuda"):
        raise ValueError(
            f"trainer.accelerator must be auto, cpu or gpu, got {accelerator!r}; spectra need "
            "float64, which other accelerators lack."
        )
    if devices is None or devices == 0:
        raise ValueError(f"trainer.devices must be a number, a list or 'auto', got {devices}.")
    if accelerator in ("gpu", "cuda"):
        found = torch.cuda.device_count()
        if not found:
            raise ValueError(
                f"trainer.accelerator={accelerator}, but this machine shows no GPU to torch "
                f"{torch.__version__}; use trainer=cpu or trainer=auto."
            )
        if isinstance(devices, int) and devices > found:
            raise ValueError(
                f"trainer.devices={devices}, but this machine has {found}; ask for fewer."
            )
