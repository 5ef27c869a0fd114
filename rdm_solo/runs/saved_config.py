"""The config that a run was started with, whichever version of the package wrote it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

__all__ = ["of_today", "read_config"]

# Modules that `_target_` named before they moved, and where their functions are now.
MOVED = {
    "rdm_solo.augment.": "rdm_solo.data.",
    "rdm_solo.folders.": "rdm_solo.data.",
    "rdm_solo.loggers.tensorboard": "rdm_solo.loggers.event_files.TensorBoard.open",
    "rdm_solo.loggers.weights_and_biases": "rdm_solo.loggers.weights_biases.WeightsAndBiases.open",
}


def read_config(path: Path) -> DictConfig:
    """The config in that YAML file, with today's names of this package's functions."""
    loaded: Any = OmegaConf.load(path)
    return of_today(loaded)


def of_today(saved: Any) -> DictConfig:
    """A saved config (or its plain dict) with today's names in every ``_target_``.

    >>> of_today({"views": {"_target_": "rdm_solo.augment.Views"}}).views._target_
    'rdm_solo.data.Views'
    """
    plain = OmegaConf.to_container(saved, resolve=False) if OmegaConf.is_config(saved) else saved
    renamed: DictConfig = OmegaConf.create(_renamed(plain))
    return renamed


def _renamed(node: Any) -> Any:
    if isinstance(node, list):
        return [_renamed(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {key: _target(v) if key == "_target_" else _renamed(v) for key, v in node.items()}


def _target(name: Any) -> Any:
    for old, new in MOVED.items():
        if isinstance(name, str) and name.startswith(old):
            return new + name.removeprefix(old)
    return name
