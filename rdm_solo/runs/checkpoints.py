"""A run's checkpoint and the config that it was started with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rdm_solo.methods.weight_files import Spec, Weights, read
from rdm_solo.runs.files import CHECKPOINT, CONFIG, SUMMARY
from rdm_solo.runs.saved_config import of_today, read_config

__all__ = ["of_run", "run_config"]


def run_config(folder: Path) -> DictConfig:
    """The config that a run was started with."""
    saved, summary = folder / CONFIG, folder / SUMMARY
    if saved.is_file():
        return read_config(saved)
    if summary.is_file():
        return of_today(json.loads(summary.read_text())["config"])
    raise ValueError(f"run={folder} is not a run folder: it holds neither {CONFIG} nor {SUMMARY}")


def of_run(run: str | Path, checkpoint: str | Path | None = None) -> tuple[Weights, Spec]:
    """A run's last weights, or those of another of its checkpoints, and its backbone."""
    backbone = run_config(Path(run)).backbone
    path = Path(checkpoint or Path(run) / CHECKPOINT)
    if not path.is_file():
        raise ValueError(
            f"run={run} has no checkpoint {path}: let it finish an epoch, or give checkpoint=FILE"
        )
    kwargs: Any = OmegaConf.to_container(backbone.kwargs)
    kwargs = {name: value for name, value in kwargs.items() if value is not None}
    return read(path), Spec(backbone.name, backbone.stem, kwargs)
