"""Whether a run can go on from another one's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from rdm_solo.runs.files import CHECKPOINT, CONFIG
from rdm_solo.runs.saved_config import read_config

__all__ = ["check_resume"]

# What a resumed run must share with the one that it goes on from; max_epochs may grow.
SHARED = ("method", "filter", "p", "seed", "batch_size", "backbone", "optimizer", "scheduler")


SHARED += ("dataset",)


# What may change on another machine.
LOCAL = ("root", "download", "workers", "skip_broken", "compile", "channels_last")


def check_resume(cfg: DictConfig, folder: Path, new: Path) -> Path:
    """The checkpoint to go on from; refuses one of another experiment or of a finished run."""
    if folder.resolve() == new.resolve():
        raise ValueError(
            f"resume={folder} is this run's own folder, where its files would be written over; "
            "give another hydra.run.dir."
        )
    checkpoint = folder / CHECKPOINT
    if not checkpoint.is_file():
        raise ValueError(f"resume={folder} holds no {CHECKPOINT}; give a run's folder.")
    config = folder / CONFIG
    if config.is_file():
        before = read_config(config)
        for name in SHARED:
            if _shared(before, name) != _shared(cfg, name):
                raise ValueError(
                    f"resume={folder} was run with another {name!r} than this command; repeat the "
                    "run's own options beside resume=..."
                )
    done = torch.load(checkpoint, map_location="cpu", weights_only=True)["epoch"] + 1
    if done >= cfg.max_epochs:
        raise ValueError(
            f"resume={folder} has finished {done} epochs and max_epochs={cfg.max_epochs}; raise "
            "max_epochs to go on."
        )
    return checkpoint


def _shared(cfg: DictConfig, name: str) -> Any:
    """That part of a config, without what may differ between machines."""
    part = OmegaConf.to_container(cfg, resolve=True)[name]  # type: ignore[call-overload,index]

    def strip(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        return {key: strip(value) for key, value in node.items() if key not in LOCAL}

    return strip(part)
