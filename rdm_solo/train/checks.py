"""Refuse values that no run could use, in one sentence each."""

from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from rdm_solo.data.images import SIDES
from rdm_solo.filters.schedules import as_schedule
from rdm_solo.messages import (
    UserError,
    check_choice,
    check_number,
    check_switch,
    check_whole,
    suggest,
)
from rdm_solo.methods.optimizers import OPTIMIZERS
from rdm_solo.train import derived_values

# Half- and double-precision weights are refused: batch norms and spectra want float32 ones.
PRECISIONS = ("32-true", "16-mixed", "bf16-mixed")

# Epochs at a run's start that have to fit into max_epochs.
WARM_UPS = ("scheduler.warmup_epochs", "method.kwargs.warmup_teacher_temperature_epochs")


def _check_keep(name: str, value: object) -> None:
    if value != "all":
        check_whole(name, value, alternative="all")


# The schema: what checks each option, with its limits.
CHECKS: dict[str, tuple[Any, ...]] = {
    "batch_size": (check_whole, 2),
    "max_epochs": (check_whole, 1),
    "threads": (check_whole, 1),
    "seed": (check_whole, 0, 2**32 - 1),
    "overwrite": (check_switch,),
    "knn.k": (check_whole, 1),
    "knn.every_n_epochs": (check_whole, 0),
    "knn.temperature": (check_number, 1e-6),
    "checkpoint.every_n_epochs": (check_whole, 1),
    "checkpoint.keep": (_check_keep,),
    "checkpoint.best": (check_switch,),
    "diagnostics.max_rows": (check_whole, 1),
    "diagnostics.max_dim": (check_whole, 1),
    "diagnostics.sample": (check_whole, 1),
    "diagnostics.every_n_epochs": (check_whole, 0),
    "pictures.every_n_epochs": (check_whole, 0),
    "optimizer.name": (check_choice, OPTIMIZERS),
    "optimizer.lr": (check_number, 0),
    "optimizer.classifier_lr": (check_number, 0),
    "optimizer.weight_decay": (check_number, 0),
    "optimizer.momentum": (check_number, 0, 1),
    "optimizer.trust_coeff": (check_number, 0),
    "optimizer.trust_clip": (check_switch,),
    "optimizer.exclude_bias_n_norm": (check_switch,),
    "scheduler.warmup_epochs": (check_number, 0),
    "scheduler.warmup_start_lr": (check_number, 0),
    "scheduler.min_lr": (check_number, 0),
    "backbone.stem": (check_choice, ("small", "imagenet")),
    "backbone.channels_last": (check_switch,),
    "backbone.kwargs.zero_init_residual": (check_switch,),
    "method.centring": (check_switch,),
    "method.sharpening": (check_switch,),
    "method.center_momentum": (check_number, 0, 1),
    "method.last_bn": (check_switch,),
    "method.momentum.base_tau": (check_number, 0, 1),
    "method.momentum.final_tau": (check_number, 0, 1),
    "method.momentum.classifier": (check_switch,),
    "dataset.image_size": (check_whole, *SIDES),
    "trainer.precision": (check_choice, PRECISIONS),
    "trainer.accumulate_grad_batches": (check_whole, 1),
    "trainer.num_nodes": (check_whole, 1),
    "trainer.sync_batchnorm": (check_switch,),
    "trainer.gradient_clip_val": (check_number, 0),
    "trainer.check_val_every_n_epoch": (check_whole, 1),
    "trainer.log_every_n_steps": (check_whole, 0),
    "trainer.enable_progress_bar": (check_switch,),
    "watch.variance": (check_number, 0, 1),
    "watch.accuracy": (check_number, 0, 1),
    "watch.erank": (check_number, 0, 1),
    "watch.gap_epochs": (check_whole, 0),
    "watch.stop": (check_switch,),
}
# Options that may be null, and what null does.
OR_NULL = {
    "threads": "null to let the run decide",
    "trainer.sync_batchnorm": "null to let the run decide",
    "trainer.gradient_clip_val": "null for no limit",
    "backbone.kwargs.zero_init_residual": "null to leave it out",
}
RULES = ("variance", "erank", "gap_epochs", "accuracy")
OR_NULL |= {f"watch.{name}": "null to switch it off" for name in RULES}
OTHER_ACCELERATORS = {
    "mps": "Apple's GPUs have no float64, in which views and spectra are computed",
    "xpu": "Lightning has no accelerator of that name",
}
ABSENT = object()
# Arguments of Lightning's Trainer that options of the same name give.
SET_ELSEWHERE = ("max_epochs", "callbacks", "logger")


def check(cfg: DictConfig) -> None:
    """Refuse a config that no run could use."""
    for name, (check_value, *limits) in CHECKS.items():
        for option in (name, f"callbacks.{name}"):
            value = OmegaConf.select(cfg, option, default=ABSENT)
            if value is ABSENT:
                continue
            if name not in OR_NULL:
                check_value(option, value, *limits)
            elif value is not None:
                check_value(option, value, *limits, alternative=OR_NULL[name])
    for name in WARM_UPS:
        epochs = check_number(name, OmegaConf.select(cfg, name) or 0, 0)
        if epochs > cfg.max_epochs:
            raise UserError(
                f"{name}={epochs:g} is longer than max_epochs={cfg.max_epochs}; shorten it."
            )
    momentum = cfg.method.get("momentum")
    if momentum and momentum.final_tau < momentum.base_tau:
        raise UserError(
            f"method.momentum.final_tau={momentum.final_tau} is below method.momentum.base_tau="
            f"{momentum.base_tau}, from which the momentum rises; raise it."
        )
    if cfg.watch.stop and not cfg.diagnostics.every_n_epochs:
        raise UserError(
            "watch.stop=true would be ignored: diagnostics.every_n_epochs=0 measures nothing that "
            "could be watched; leave one of them out."
        )
    if OmegaConf.select(cfg, "checkpoint.best") and not cfg.knn.every_n_epochs:
        raise UserError(
            "checkpoint.best=true would be ignored: knn.every_n_epochs=0 measures no accuracy by "
            "which one could be the best; leave one of them out."
        )
    _check_backbone(cfg.backbone)
    _check_clipping(cfg)
    _check_trainer(cfg.trainer)
    if cfg.p is not None:
        p = OmegaConf.to_container(cfg.p) if OmegaConf.is_config(cfg.p) else cfg.p
        as_schedule(p, epochs=cfg.max_epochs)


def _check_clipping(cfg: DictConfig) -> None:
    """Refuse DINO's own clipping where solo-learn would clip scaled or partial gradients."""
    scaled = cfg.trainer.precision == "16-mixed" or cfg.trainer.accumulate_grad_batches > 1
    if scaled and cfg.method.kwargs.get("clip_grad"):
        raise UserError(
            f"method.kwargs.clip_grad={cfg.method.kwargs.clip_grad} would clip gradients that are "
            "still scaled (16-mixed) or not yet summed up; use trainer.gradient_clip_val, or "
            "leave 16-mixed and accumulation out."
        )


def _check_backbone(backbone: DictConfig) -> None:
    if not isinstance(backbone.name, str):
        raise UserError(f"backbone.name must be a name such as resnet18, got {backbone.name!r}.")
    if not isinstance(backbone.compile, bool):
        from torch._dynamo import list_backends

        known = list_backends(exclude_tags=("experimental",))
        if backbone.compile not in known:
            raise UserError(
                f"backbone.compile must be true, false, or one of {', '.join(known)}, "
                f"got {backbone.compile!r}{suggest(backbone.compile, known) or '.'}"
            )


def _check_trainer(trainer: DictConfig) -> None:
    for name in SET_ELSEWHERE:
        if name in trainer:
            raise UserError(f"trainer.{name} is set by the run itself; use {name}=...")
    accelerator, devices = trainer.accelerator, trainer.devices
    if accelerator not in ("auto", "cpu", "gpu", "cuda"):
        raise UserError(
            f"trainer.accelerator must be auto, cpu, gpu or cuda, got {accelerator!r}: "
            f"{OTHER_ACCELERATORS.get(accelerator, 'it was never tried')}; use trainer=cpu."
        )
    found = torch.cuda.device_count()
    if accelerator in ("gpu", "cuda") and not found:
        raise UserError(
            f"trainer.accelerator={accelerator}, but this machine shows no GPU to torch "
            f"{torch.__version__}; use trainer=cpu or trainer=auto."
        )
    if devices in ("auto", -1):  # -1 is Lightning's word for all GPUs
        return
    if derived_values.on_cpu(trainer):
        check_whole("trainer.devices", devices, 1, alternative="auto (a list names GPUs)")
    elif not OmegaConf.is_list(devices):
        check_whole("trainer.devices", devices, 1, found, alternative="a list of GPUs, or auto")
    elif not devices or len(set(devices)) < len(devices) or not set(devices) <= set(range(found)):
        raise UserError(
            f"trainer.devices must list each GPU once, by a number from 0 to {found - 1}, "
            f"got {devices}."
        )
