"""Choose the values of options that the config leaves to the device."""

from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from rdm_solo.runs import settings
from rdm_solo.train import claims
from rdm_solo.train.processes import on_cpu

# A checkpoint can take longer than an epoch of small images on a GPU.
SECONDS = 60
# Options that a run keeps when it resumes, on whatever device: they change its numbers.
KEPT = ("trainer.precision", "optimizer.fused")
# Options that a run on a GPU prints.
PRINTED = (
    "trainer.precision",
    "trainer.benchmark",
    "optimizer.fused",
    "backbone.channels_last",
    "checkpoint.min_seconds",
)


def choose(cfg: DictConfig, folder: Path) -> DictConfig:
    """Return the config of a run in this folder with a value for each option that is null."""
    on_gpu = not on_cpu(cfg.trainer)
    has_bfloat16 = on_gpu and torch.cuda.is_bf16_supported(including_emulation=False)
    values = defaults(cfg, on_gpu, has_bfloat16)
    earlier = claims.earlier_config(cfg, folder)
    if earlier is None:
        return fill(cfg, values)
    kept = {name: OmegaConf.select(earlier, name) for name in KEPT}
    resumed = fill(cfg, values | kept)
    if cfg.overwrite and settings.differences(earlier, resumed):  # another run replaces it
        return fill(cfg, values)
    return resumed


def defaults(cfg: DictConfig, on_gpu: bool, has_bfloat16: bool) -> dict[str, Any]:
    """Return the values that suit the device, by option.

    ``has_bfloat16`` is whether the GPU computes in bfloat16 rather than emulates it.
    """
    values: dict[str, Any] = {
        "trainer.precision": "32-true",
        "optimizer.fused": False,
        "checkpoint.every_n_epochs": 1,
        "checkpoint.min_seconds": 0,
    }
    if not on_gpu:
        return values
    if has_bfloat16:
        values["trainer.precision"] = "bf16-mixed"
    # cuDNN tries several algorithms and keeps the fastest, which may differ from run to run.
    values["trainer.benchmark"] = not cfg.trainer.get("deterministic")
    # A fused optimiser unscales float16's gradients itself, and Lightning cannot clip them then.
    is_scaled = cfg.trainer.precision == "16-mixed"
    loops = cfg.optimizer.kwargs.keys() & {"foreach", "differentiable"}  # torch refuses both
    values["optimizer.fused"] = cfg.optimizer.name != "lars" and not is_scaled and not loops
    if cfg.checkpoint.every_n_epochs is None and not cfg.checkpoint.keep:
        values["checkpoint.min_seconds"] = SECONDS
    return values


def fill(cfg: DictConfig, values: dict[str, Any]) -> DictConfig:
    """Return the config with these values in place of null."""
    cfg = cfg.copy()
    for name, value in values.items():
        if OmegaConf.select(cfg, name) is None:
            OmegaConf.update(cfg, name, value)
    return cfg


def describe(cfg: DictConfig) -> str:
    """Return the options that a run on a GPU prints, as a user passes them."""
    options = []
    for name in PRINTED:
        value = OmegaConf.select(cfg, name)
        options.append(f"{name}={str(value).lower()}")
    return " ".join(options)
