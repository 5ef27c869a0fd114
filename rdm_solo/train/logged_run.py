"""What a run's loggers are told about it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from rdm_solo.loggers import RunInfo
from rdm_solo.methods.descriptions import ChosenFilter
from rdm_solo.runs import labels

__all__ = ["name_and_group", "run_info"]


def run_info(
    cfg: DictConfig, folder: Path, derived: Mapping[str, Any], checkpoint: Path | None
) -> RunInfo:
    """The description of the run in ``folder``; ``checkpoint`` is that of the run it resumes."""
    goes_on_from = Path(cfg.resume) if cfg.resume else None
    if goes_on_from and goes_on_from.resolve() == folder.resolve():
        goes_on_from = folder
    if requeued := list(
        folder.glob("hpc_ckpt_*.ckpt")
    ):  # Lightning's, in a job that SLURM requeued
        goes_on_from = folder
        checkpoint = max(requeued, key=lambda path: int(path.stem.rpartition("_")[2]))
    name, group = name_and_group(cfg)
    sweep = _sweep_folder()
    config: Any = OmegaConf.to_container(cfg, resolve=True)
    if sweep:
        config["sweep_folder"] = sweep  # "sweep" means something else to W&B
    return RunInfo(
        folder=folder,
        name=name,
        group=group,
        hyperparameters=_hyperparameters(cfg, derived),
        config=config,
        sweep=sweep,
        goes_on_from=goes_on_from,
        step=_step(checkpoint) if checkpoint else 0,
    )


def name_and_group(cfg: DictConfig) -> tuple[str, str]:
    """A run's name, and the group that it shares with other seeds.

    >>> cfg = OmegaConf.create({"method": {"name": "byol"}, "filter": {"name": "target_pow"}})
    >>> name_and_group(OmegaConf.merge(cfg, {"p": -0.5, "seed": 3, "dataset": {"name": "digits"}}))
    ('byol-target_pow-p=-0.5-seed=3', 'digits-byol-target_pow-p=-0.5')
    """
    parts, chosen = [cfg.method.name], ChosenFilter.of(cfg)
    if not chosen.absent:
        parts.append(chosen.label)
    if cfg.p is not None:
        parts.append(f"p={labels.exponent(cfg.p)}")
    words = "-".join(parts)
    return f"{words}-seed={cfg.seed}", f"{cfg.dataset.name}-{words}"


def _hyperparameters(cfg: DictConfig, derived: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers and words by which runs are compared; None where a run has none."""
    scheduled = OmegaConf.is_config(cfg.p)
    return {
        "method": cfg.method.name,
        "filter": ChosenFilter.of(cfg).label,
        "p": None if scheduled or cfg.p is None else float(cfg.p),
        "p_schedule": labels.exponent(cfg.p) if scheduled else None,
        "dataset": cfg.dataset.name,
        "backbone": cfg.backbone.name,
        "batch": derived["global_batch"],
        "lr": derived["lr"],
        "weight_decay": cfg.optimizer.weight_decay,
        "epochs": cfg.max_epochs,
        "seed": cfg.seed,
    }


def _sweep_folder() -> str | None:
    """The name of the sweep's folder, in a multirun."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    if not HydraConfig.initialized() or HydraConfig.get().mode != RunMode.MULTIRUN:
        return None
    return Path(HydraConfig.get().sweep.dir).name


def _step(checkpoint: Path) -> int:
    saved = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
    return int(saved["global_step"])
