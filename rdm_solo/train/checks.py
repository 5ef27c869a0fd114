"""Refuses, in one sentence, values that no run could use."""

from __future__ import annotations

import math
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from rdm_solo.filters.schedules import as_schedule
from rdm_solo.messages import check_whole, suggest
from rdm_solo.methods.optimizers import OPTIMIZERS

__all__ = ["check"]

# Half- and double-precision weights are refused: batch norms and spectra want float32 ones.
PRECISIONS = ("32-true", "16-mixed", "bf16-mixed")


def check(cfg: DictConfig) -> None:
    """Refuse, in one sentence, what no run could use."""
    for name, least in (("batch_size", 2), ("max_epochs", 1), ("seed", 0)):
        value = cfg[name]
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}.")
    check_whole("threads", cfg.get("threads") or 1, 1, alternative="null to let the run decide")
    for name in ("knn.k", "diagnostics.max_rows", "diagnostics.max_dim", "diagnostics.sample"):
        _check_number(cfg, name, 1, int)
    for name in ("diagnostics.every_n_epochs", "knn.every_n_epochs", "pictures.every_n_epochs"):
        _check_number(cfg, name, 0, int)
    for name in ("lr", "classifier_lr", "weight_decay", "momentum"):
        _check_number(cfg, f"optimizer.{name}", 0, float)
    _check_watch(cfg.watch, bool(cfg.diagnostics.every_n_epochs))
    _check_method(cfg)
    _check_compile(cfg.backbone.compile)
    _check_number(cfg, "scheduler.warmup_epochs", 0, float)
    _check_number(cfg, "knn.temperature", 1e-6, float)
    if cfg.backbone.stem not in ("small", "imagenet"):
        raise ValueError(f"backbone.stem must be 'small' or 'imagenet', got {cfg.backbone.stem!r}.")
    if cfg.scheduler.warmup_epochs > cfg.max_epochs:
        raise ValueError(
            f"scheduler.warmup_epochs={cfg.scheduler.warmup_epochs} is longer than "
            f"max_epochs={cfg.max_epochs}; shorten it."
        )
    if cfg.optimizer.name not in OPTIMIZERS:
        raise ValueError(
            f"optimizer.name must be one of {', '.join(OPTIMIZERS)}, "
            f"got {cfg.optimizer.name!r}{suggest(cfg.optimizer.name, OPTIMIZERS)}."
        )
    if cfg.p is not None:
        p = OmegaConf.to_container(cfg.p) if OmegaConf.is_config(cfg.p) else cfg.p
        as_schedule(p, epochs=cfg.max_epochs)
    _check_device(cfg.trainer)


def _check_number(cfg: DictConfig, name: str, least: float, kind: type) -> None:
    value = OmegaConf.select(cfg, name)
    fits = isinstance(value, (int, kind)) and not isinstance(value, bool) and value >= least
    if not fits:
        what = "whole number" if kind is int else "number"
        raise ValueError(f"{name} must be a {what} of at least {least:g}, got {value!r}.")


def _check_watch(watch: DictConfig, measured: bool) -> None:
    for name, kind in (("variance", float), ("erank", float), ("gap_epochs", int)):
        value = watch[name]
        most = 1 if kind is float else math.inf
        fits = isinstance(value, (int, kind)) and not isinstance(value, bool)
        if value is not None and not (fits and 0 <= value <= most):
            what = "a whole number of epochs" if kind is int else "a number from 0 to 1"
            raise ValueError(
                f"watch.{name} must be {what}, or null to switch it off, got {value!r}."
            )
    if not isinstance(watch.stop, bool):
        raise ValueError(f"watch.stop must be true or false, got {watch.stop!r}.")
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
            value = method.momentum[name]
            if not isinstance(value, (int, float)) or not 0 <= value <= 1:
                raise ValueError(f"method.momentum.{name} must be from 0 to 1, got {value!r}.")
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
    if trainer.precision not in PRECISIONS:
        raise ValueError(
            f"trainer.precision must be one of {', '.join(PRECISIONS)}, got {trainer.precision!r}."
        )
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
