"""Describes a run for its loggers: name, group, hyperparameters, config."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rdm_solo.loggers import RunInfo
from rdm_solo.methods.chosen_filter import ChosenFilter
from rdm_solo.runs import labels
from rdm_solo.train.derived_values import Derived
from rdm_solo.train.sweep import of_this_process


def run_info(cfg: DictConfig, folder: Path, derived: Derived, step: int, epochs: int) -> RunInfo:
    """The description of the run in ``folder``; it goes on from that ``step``, after so many
    ``epochs``."""
    goes_on_from = Path(cfg.resume) if cfg.resume else None
    if goes_on_from and goes_on_from.resolve() == folder.resolve():
        goes_on_from = folder
    chosen, scheduled = ChosenFilter.of(cfg), OmegaConf.is_config(cfg.p)
    words = cfg.method.name if chosen.absent else f"{cfg.method.name}-{chosen.label}"
    if cfg.p is not None:
        words += f"-p={labels.exponent(cfg.p)}"
    config: Any = OmegaConf.to_container(cfg, resolve=True)
    sweep = of_this_process()
    if sweep is not None:
        config["sweep_folder"] = sweep.name  # "sweep" means something else to W&B
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
        sweep=None if sweep is None else sweep.name,
        goes_on_from=goes_on_from,
        step=step,
        epochs=epochs,
    )
