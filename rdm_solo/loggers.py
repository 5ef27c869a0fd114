"""TensorBoard and Weights & Biases beside metrics.csv, and how a later command finds them again.

What a run logs to is written to ``loggers.json`` in its folder; :func:`append` adds scalars there
after the run has ended.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

__all__ = ["append", "build", "close", "describe", "introduce", "tensorboard", "weights_and_biases"]

log = logging.getLogger("rdm_solo")

RECORD = "loggers.json"
EVENTS = "tensorboard"


def build(
    cfg: DictConfig, folder: Path, resume: Path | None = None
) -> tuple[list[Any], dict[str, Any]]:
    """Lightning's loggers for ``cfg.logger``, and what is to be known to find them again.

    A run that resumes another one goes on under its W&B id. Nothing is opened or written yet.
    """
    import hydra.utils

    before = _record(resume) if resume else {}
    made, record = [], {}
    for name, node in (cfg.get("logger") or {}).items():
        make = hydra.utils.instantiate(node, _partial_=True, _convert_="all")
        logger, record[name] = make(folder=folder, before=before.get(name, {}), **describe(cfg))
        made.append(logger)
    return made, record


def introduce(made: list[Any], record: dict[str, Any], cfg: DictConfig, folder: Path) -> None:
    """Write ``loggers.json`` and hand every logger the config; for the first process alone."""
    if not made:
        return
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n")
    for logger in made:
        logger.log_hyperparams(OmegaConf.to_container(cfg, resolve=True))


def describe(cfg: DictConfig) -> dict[str, str]:
    """A run's name, and the group that it shares with other seeds.

    >>> cfg = OmegaConf.create({"method": {"name": "byol"}, "filter": {"name": "target_pow"}})
    >>> describe(OmegaConf.merge(cfg, {"p": -0.5, "seed": 3, "dataset": {"name": "digits"}}))
    {'title': 'byol-target_pow-p=-0.5-seed=3', 'family': 'digits-byol-target_pow-p=-0.5'}
    """
    parts = [cfg.method.name, *([] if cfg.filter.name == "none" else [cfg.filter.name])]
    if OmegaConf.is_config(cfg.p):
        parts.append(f"p={cfg.p.schedule}({cfg.p.get('start')},{cfg.p.get('end')})")
    elif cfg.p is not None:
        parts.append(f"p={cfg.p:g}")
    words = "-".join(parts)
    return {"title": f"{words}-seed={cfg.seed}", "family": f"{cfg.dataset.name}-{words}"}


def tensorboard(folder: Path, **_: Any) -> tuple[Any, dict[str, Any]]:
    """Event files in the run's folder."""
    from rdm_solo.host import pl

    _need("tensorboard")
    logger = pl.loggers.TensorBoardLogger(folder, name=EVENTS, version="", default_hp_metric=False)
    return logger, {"folder": EVENTS}


def weights_and_biases(
    folder: Path,
    before: Mapping[str, Any],
    title: str,
    family: str,
    project: str = "rdm_solo",
    entity: str | None = None,
    offline: bool = False,
    name: str | None = None,
    group: str | None = None,
    tags: list[str] | None = None,
) -> tuple[Any, dict[str, Any]]:
    """A W&B run whose id is ours, so that it can be found again."""
    _need("wandb")
    record = {
        "id": before.get("id") or secrets.token_hex(4),
        "project": project,
        "entity": entity,
        "offline": bool(offline),
        "name": name or title,
        "group": group or family,
    }
    return _wandb_logger(folder, record, tags=tags or []), record


def _wandb_logger(folder: Path, record: Mapping[str, Any], **options: Any) -> Any:
    from rdm_solo.host import pl

    return pl.loggers.WandbLogger(save_dir=folder, resume="allow", **record, **options)


def close(loggers: list[Any], failed: bool = False) -> None:
    """End what stays open; W&B's next run in this process would otherwise join this one.

    Its page calls the run failed where it did, and finished otherwise.
    """
    for logger in loggers:
        if "Wandb" in type(logger).__name__:
            import wandb

            wandb.finish(exit_code=int(failed))


def append(folder: Path, scalars: Mapping[str, float], step: int) -> list[str]:
    """Add scalars to every logger of a finished run; the names of those that took them.

    ``step`` is the optimiser step that they belong to. A logger that fails (no network, not
    installed) is named in a warning and costs nothing else.
    """
    took = []
    for name, record in _record(folder).items():
        try:
            if name == "tensorboard":
                _append_events(folder / record["folder"], scalars, step)
            elif name == "wandb":
                logger = _wandb_logger(folder, record)
                logger.log_metrics(dict(scalars), step=step)
                logger.experiment.summary.update(dict(scalars))
                close([logger])
            else:
                continue
        except Exception as error:  # whatever a service or its client raises
            log.warning(f"warning: {', '.join(scalars)} did not reach {name}: {error}")
        else:
            took.append(name)
    return took


def _append_events(folder: Path, scalars: Mapping[str, float], step: int) -> None:
    """A further event file in the folder; TensorBoard reads all of them as one run."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        for name, value in scalars.items():
            writer.add_scalar(name, value, step)  # type: ignore[no-untyped-call, unused-ignore]


def _record(folder: Path) -> dict[str, Any]:
    path = folder / RECORD
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return found


def _need(package: str) -> None:
    import importlib.util

    if importlib.util.find_spec(package) is None:
        raise ValueError(
            f"logger={package} needs the package {package}, which is not installed: "
            f"pip install {package}, or leave logger={package} out"
        )
