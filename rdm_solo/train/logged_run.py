"""Describes a run for its loggers: name, group, hyperparameters, config."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rdm_solo.loggers import RunInfo
from rdm_solo.methods.descriptions import ChosenFilter
from rdm_solo.runs import labels
from rdm_solo.train.derived_values import Derived


def run_info(cfg: DictConfig, folder: Path, derived: Derived, step: int) -> RunInfo:
    """The description of the run in ``folder``; it goes on from that ``step``."""
    goes_on_from = Path(cfg.resume) if cfg.resume else None
    if goes_on_from and goes_on_from.resolve() == folder.resolve():
        goes_on_from = folder
    chosen, scheduled = ChosenFilter.of(cfg), OmegaConf.is_config(cfg.p)
    words = cfg.method.name if chosen.absent else f"{cfg.method.name}-{chosen.label}"
    if cfg.p is not None:
        words += f"-p={labels.exponent(cfg.p)}"
    config: Any = OmegaConf.to_container(cfg, resolve=True)
    if sweep := _sweep_folder():
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
        goes_on_from=goes_on_from,
        step=step,
    )


def _sweep_folder() -> str | None:
    """The name of the sweep's folder, in a multirun."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    if not HydraConfig.initialized() or HydraConfig.get().mode != RunMode.MULTIRUN:
        return None
    return Path(HydraConfig.get().sweep.dir).name
