"""TensorBoard and Weights & Biases beside metrics.csv, and how a later command finds them again.

What a run logs to is written to ``loggers.json`` in its folder; :func:`append` adds scalars there
after the run has ended. :mod:`rdm_solo.loggers.events` and
:mod:`rdm_solo.loggers.weights_biases` know the two.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf

from rdm_solo.methods.descriptions import ChosenFilter
from rdm_solo.runs.files import LOGGERS, write_whole
from rdm_solo.runs.labels import filter_name

__all__ = [
    *("append", "build", "close", "describe", "facts", "introduce", "show", "shows_pictures"),
    *("tensorboard", "weights_and_biases"),
]

log = logging.getLogger("rdm_solo")


def build(
    cfg: DictConfig, folder: Path, resume: Path | None = None
) -> tuple[list[Any], dict[str, Any]]:
    """Lightning's loggers for ``cfg.logger``, and what is to be known to find them again.

    A run that resumes another one goes on under its W&B id. Nothing is opened or written yet.
    """
    import hydra.utils

    before = _record(resume) if resume else {}
    made, record = [], {}
    known = {"folder": folder, "resume": resume, "sweep": _sweep(), **describe(cfg)}
    for name, node in (cfg.get("logger") or {}).items():
        make = hydra.utils.instantiate(node, _partial_=True, _convert_="all")
        logger, record[name] = make(before=before.get(name, {}), **known)
        made.append(logger)
    return made, record


def introduce(
    made: list[Any],
    record: dict[str, Any],
    cfg: DictConfig,
    folder: Path,
    derived: Mapping[str, Any],
    checkpoint: Path | None = None,
) -> None:
    """Open the loggers, with the config; for the first process alone.

    ``checkpoint`` is where a resumed run goes on; TensorBoard's files up to there are carried over.
    """
    if not made:
        return
    write_whole(folder / LOGGERS, json.dumps(record, indent=2) + "\n")
    config: Any = OmegaConf.to_container(cfg, resolve=True)
    if sweep := _sweep():
        config["sweep_folder"] = sweep  # W&B has a "sweep" of its own
    for logger in made:
        module = _module(logger)
        if checkpoint is not None and hasattr(module, "carry_over"):
            module.carry_over(Path(cfg.resume), folder, _step(checkpoint))
        module.introduce(logger, facts(cfg, derived), config)


def _step(checkpoint: Path) -> int:
    import torch

    saved = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
    return int(saved["global_step"])


def facts(cfg: DictConfig, derived: Mapping[str, Any]) -> dict[str, Any]:
    """What one compares runs by, flat: numbers and words; None where a run has none."""
    scheduled = OmegaConf.is_config(cfg.p)
    return {
        "method": cfg.method.name,
        "filter": filter_name(cfg),
        "p": None if scheduled or cfg.p is None else float(cfg.p),
        "p_schedule": _exponent(cfg.p) if scheduled else None,
        "dataset": cfg.dataset.name,
        "backbone": cfg.backbone.name,
        "batch": derived["global_batch"],
        "lr": derived["lr"],
        "weight_decay": cfg.optimizer.weight_decay,
        "epochs": cfg.max_epochs,
        "seed": cfg.seed,
    }


def describe(cfg: DictConfig) -> dict[str, str]:
    """A run's name, and the group that it shares with other seeds.

    >>> cfg = OmegaConf.create({"method": {"name": "byol"}, "filter": {"name": "target_pow"}})
    >>> describe(OmegaConf.merge(cfg, {"p": -0.5, "seed": 3, "dataset": {"name": "digits"}}))
    {'title': 'byol-target_pow-p=-0.5-seed=3', 'family': 'digits-byol-target_pow-p=-0.5'}
    """
    parts = [cfg.method.name, *([] if ChosenFilter.of(cfg).absent else [filter_name(cfg)])]
    if cfg.p is not None:
        parts.append(f"p={_exponent(cfg.p)}")
    words = "-".join(parts)
    return {"title": f"{words}-seed={cfg.seed}", "family": f"{cfg.dataset.name}-{words}"}


def _exponent(p: Any) -> str:
    if OmegaConf.is_config(p):
        return f"{p.schedule}({p.get('start')},{p.get('end')})"
    return f"{p:g}"


def _sweep() -> str | None:
    """The name of the sweep's folder, in a multirun."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    if not HydraConfig.initialized() or HydraConfig.get().mode != RunMode.MULTIRUN:
        return None
    return Path(HydraConfig.get().sweep.dir).name


def tensorboard(**known: Any) -> tuple[Any, dict[str, Any]]:
    """Event files in the run's folder."""
    _need("tensorboard")
    from rdm_solo.loggers import events

    return events.logger(**known)


def weights_and_biases(**known: Any) -> tuple[Any, dict[str, Any]]:
    """A W&B run whose id is ours."""
    _need("wandb")
    from rdm_solo.loggers import weights_biases

    return weights_biases.logger(**known)


def _module(logger: Any) -> ModuleType | None:
    """The module that knows that logger."""
    from rdm_solo.loggers import events, weights_biases

    return next((module for module in (events, weights_biases) if module.mine(logger)), None)


def shows_pictures(logger: Any) -> bool:
    """Whether pictures can go to one of Lightning's loggers.

    >>> shows_pictures(object())
    False
    """
    return _module(logger) is not None


def show(
    loggers: list[Any],
    name: str,
    image: np.ndarray,
    history: Mapping[int, Mapping[str, np.ndarray]],
    step: int,
) -> None:
    """A picture ``(height, width, 3)``, and the arrays of the epochs up to now as charts."""
    for logger in loggers:
        module = _module(logger)
        if module is not None:
            module.picture(logger, name, image, step)
            module.spectra(logger, history, step)


def close(loggers: list[Any], failed: bool = False) -> None:
    """End what stays open, and say in it how the run has ended."""
    for logger in loggers:
        module = _module(logger)
        try:
            if module is not None:
                module.close(logger, failed)
        except Exception as error:  # the run itself is safe
            log.warning(f"warning: {type(logger).__name__} could not be closed: {error}")


def append(folder: Path, scalars: Mapping[str, float], step: int) -> list[str]:
    """Add scalars to every logger of a finished run; the names of those that took them.

    ``step`` is the optimiser step that they belong to. A logger that fails (not installed, a disk
    that is full) is named in a warning and costs nothing else.
    """
    from rdm_solo.loggers import events, weights_biases

    took, records = [], _record(folder)
    for name, record in records.items():
        module = {"tensorboard": events, "wandb": weights_biases}.get(name)
        if module is None:
            continue
        record["appended"] = {**record.get("appended", {}), **scalars}
        try:
            module.append(folder, record, scalars, step)
        except Exception as error:  # whatever a service or its client raises
            log.warning(f"warning: {', '.join(scalars)} did not reach {name}: {error}")
        else:
            took.append(name)
    if took:
        write_whole(folder / LOGGERS, json.dumps(records, indent=2) + "\n")
    return took


def _record(folder: Path) -> dict[str, Any]:
    path = folder / LOGGERS
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return found


def _need(package: str) -> None:
    import importlib.util

    if importlib.util.find_spec(package) is None:
        raise ValueError(
            f"logger={package} needs the package {package}, which is not installed: "
            f"pip install {package}, or leave logger={package} out"
        )
