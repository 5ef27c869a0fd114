"""Refuses, in one sentence, values that no run could use."""

from __future__ import annotations

from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from rdm_solo.filters.schedules import as_schedule
from rdm_solo.messages import check_choice, check_number, check_switch, check_whole, suggest
from rdm_solo.methods.optimizers import OPTIMIZERS

__all__ = ["check"]

# Half- and double-precision weights are refused: batch norms and spectra want float32 ones.
PRECISIONS = ("32-true", "16-mixed", "bf16-mixed")

# Whole numbers, and the least of each.
WHOLE = {
    "batch_size": 2,
    "max_epochs": 1,
    "knn.k": 1,
    "diagnostics.max_rows": 1,
    "diagnostics.max_dim": 1,
    "diagnostics.sample": 1,
    "diagnostics.every_n_epochs": 0,
    "knn.every_n_epochs": 0,
    "pictures.every_n_epochs": 0,
    "trainer.accumulate_grad_batches": 1,
    "trainer.num_nodes": 1,
}


def check(cfg: DictConfig) -> None:
    """Refuse, in one sentence, what no run could use."""
    for name, least in WHOLE.items():
        check_whole(name, OmegaConf.select(cfg, name), least)
    check_whole("seed", cfg.seed, 0, 2**32 - 1)
    if cfg.get("threads") is not None:
        check_whole("threads", cfg.threads, 1, alternative="null to let the run decide")
    for name in ("lr", "classifier_lr", "weight_decay", "momentum"):
        check_number(f"optimizer.{name}", cfg.optimizer[name], 0)
    _check_watch(cfg.watch, bool(cfg.diagnostics.every_n_epochs))
    _check_method(cfg)
    _check_compile(cfg.backbone.compile)
    for name in ("warmup_epochs", "warmup_start_lr", "min_lr"):
        check_number(f"scheduler.{name}", cfg.scheduler[name], 0)
    if not isinstance(cfg.backbone.name, str):
        raise ValueError(
            f"backbone.name must be a name such as resnet18, got {cfg.backbone.name!r}."
        )
    check_number("knn.temperature", cfg.knn.temperature, 1e-6)
    if cfg.backbone.stem not in ("small", "imagenet"):
        raise ValueError(f"backbone.stem must be 'small' or 'imagenet', got {cfg.backbone.stem!r}.")
    if cfg.scheduler.warmup_epochs > cfg.max_epochs:
        raise ValueError(
            f"scheduler.warmup_epochs={cfg.scheduler.warmup_epochs} is longer than "
            f"max_epochs={cfg.max_epochs}; shorten it."
        )
    check_choice("optimizer.name", cfg.optimizer.name, OPTIMIZERS)
    if cfg.p is not None:
        p = OmegaConf.to_container(cfg.p) if OmegaConf.is_config(cfg.p) else cfg.p
        as_schedule(p, epochs=cfg.max_epochs)
    _check_device(cfg.trainer)


def _check_watch(watch: DictConfig, measured: bool) -> None:
    off = "null to switch it off"
    for name in ("variance", "erank"):
        if watch[name] is not None:
            check_number(f"watch.{name}", watch[name], 0, 1, alternative=off)
    if watch.gap_epochs is not None:
        check_whole("watch.gap_epochs", watch.gap_epochs, 0, alternative=off)
    check_switch("watch.stop", watch.stop)
    if watch.stop and not measured:
        raise ValueError(
            "watch.stop=true would be ignored: diagnostics.every_n_epochs=0 measures nothing that "
            "could be watched; leave one of them out."
        )


def _check_method(cfg: DictConfig) -> None:
    """Options of a method that solo-learn would refuse with an assertion, or not at all."""
    method, kwargs = cfg.method, cfg.method.kwargs
    if "momentum" in method:
        for name in ("base_tau", "final_tau"):
            check_number(f"method.momentum.{name}", method.momentum[name], 0, 1)
    warm = kwargs.get("warmup_teacher_temperature_epochs", 0)
    if warm > cfg.max_epochs:
        raise ValueError(
            f"method.kwargs.warmup_teacher_temperature_epochs={warm} is longer than "
            f"max_epochs={cfg.max_epochs}; shorten it."
        )
    scaled = cfg.trainer.precision == "16-mixed" or cfg.trainer.accumulate_grad_batches > 1
    if kwargs.get("clip_grad") and scaled:
        raise ValueError(
            f"method.kwargs.clip_grad={kwargs.clip_grad} clips before float16's scale is taken off "
            "and before gradients are summed up; use trainer.gradient_clip_val, or leave "
            "16-mixed and accumulation."
        )


def _check_compile(backend: Any) -> None:
    if isinstance(backend, str):
        from torch._dynamo import list_backends

        known = list_backends(exclude_tags=("experimental",))
        if backend not in known:
            raise ValueError(
                f"backbone.compile must be true, false, or one of {', '.join(known)}, "
                f"got {backend!r}{suggest(backend, known) or '.'}"
            )


def _check_device(trainer: DictConfig) -> None:
    accelerator, devices = trainer.accelerator, trainer.devices
    check_choice("trainer.precision", trainer.precision, PRECISIONS)
    for name, instead in (
        ("max_epochs", "max_epochs=..."),
        ("callbacks", "the Python API"),
        ("logger", "logger=..."),
    ):
        if name in trainer:
            raise ValueError(f"trainer.{name} is set by the run itself; use {instead}.")
    if accelerator not in ("auto", "cpu", "gpu", "cuda"):
        raise ValueError(
            f"trainer.accelerator must be auto, cpu or gpu, got {accelerator!r}; spectra need "
            "float64, which other accelerators lack."
        )
    if devices is None:
        raise ValueError("trainer.devices must be a number, a list or 'auto', got null.")
    if accelerator in ("gpu", "cuda"):
        found = torch.cuda.device_count()
        if not found:
            raise ValueError(
                f"trainer.accelerator={accelerator}, but this machine shows no GPU to torch "
                f"{torch.__version__}; use trainer=cpu or trainer=auto."
            )
        if isinstance(devices, int) and devices > max(found, 1):
            raise ValueError(
                f"trainer.devices={devices}, but this machine has {found}; ask for fewer."
            )
    if isinstance(devices, int) and devices == 0:
        raise ValueError("trainer.devices must be at least 1 or 'auto', got 0.")
