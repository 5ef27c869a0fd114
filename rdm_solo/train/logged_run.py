"""Describe a run for its loggers: name, group, hyperparameters, config."""

import os
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rdm_solo.loggers import RunInfo
from rdm_solo.methods.chosen_filter import ChosenFilter
from rdm_solo.runs import labels
from rdm_solo.train.derived_values import Derived
from rdm_solo.train.folders import Start
from rdm_solo.train.sweep import SWEEP_FOLDER


def run_info(cfg: DictConfig, folder: Path, derived: Derived, start: Start) -> RunInfo:
    """Return the description of the run that starts in ``folder``."""
    chosen, scheduled = ChosenFilter.of(cfg), OmegaConf.is_config(cfg.p)
    words = cfg.method.name if chosen.absent else f"{cfg.method.name}-{chosen.label}"
    if cfg.p is not None:
        words += f"-p={labels.exponent(cfg.p)}"
    config: Any = OmegaConf.to_container(cfg, resolve=True)
    sweep = os.environ.get(SWEEP_FOLDER)
    if sweep:
        config["sweep_folder"] = sweep  # "sweep" means something else to W&B
    return RunInfo(
        folder=folder,
        name=f"{words}-seed={cfg.seed}",
        group=f"{cfg.dataset.name}-{words}",
        hyperparameters={
            "method": cfg.method.name,
            "filter": chosen.label,
            "p": None if scheduled or cfg.p is None else float(cfg.p),
            "p_schedule": labels.exponent(cfg.p) if scheduled else None,
            "dataset": cfg.dataset.name,
            "backbone": cfg.backbone.name,
            "batch": derived.global_batch,
            "lr": derived.lr,
            "weight_decay": cfg.optimizer.weight_decay,
            "epochs": cfg.max_epochs,
            "seed": cfg.seed,
        },
        config=config,
        sweep=sweep,
        step=start.step,
    )
