"""Start a run from a checkpoint of another run that was the same until p changed."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rdm_solo.filters.schedules import as_schedule
from rdm_solo.ground.errors import UserError
from rdm_solo.runs import checkpoints, saved_config
from rdm_solo.runs.files import CHECKPOINT, CONFIG, METRICS, SPECTRA, write_atomically, writing

log = logging.getLogger("rdm_solo")


def copy(cfg: DictConfig, folder: Path) -> Path | None:
    """Copy the most epochs that a run beside this folder has trained alike; return that run.

    None: no such run has a readable checkpoint kept by ``checkpoint.keep``. Measurements after the
    checkpoint are copied too, since a run that resumes drops them.
    """
    for _, checkpoint in sorted(_checkpoints(cfg, folder), reverse=True):
        try:
            checkpoints.read(checkpoint)
        except UserError as error:
            log.warning(f"warning: {error}")
            continue
        source = checkpoint.parent.parent
        copies = {CHECKPOINT: checkpoint, METRICS: source / METRICS}
        for path in (source / SPECTRA).glob("*.npz"):
            copies[f"{SPECTRA}/{path.name}"] = path
        for name, path in copies.items():
            with writing(folder / name):
                (folder / name).parent.mkdir(exist_ok=True)
            write_atomically(folder / name, path.read_bytes())
        return source
    return None


def _checkpoints(cfg: DictConfig, folder: Path) -> Iterator[tuple[int, Path]]:
    """Yield epoch and path of the checkpoints that this run would have written as well."""
    for path in folder.parent.glob(f"*/{CONFIG}"):
        run = path.parent.parent
        try:
            shared = shared_epochs(saved_config.run_config(run), cfg)
        except UserError:  # its config cannot be read
            continue
        for epoch, checkpoint in checkpoints.by_epoch(run).items():
            if epoch <= shared:
                yield epoch, checkpoint


def shared_epochs(one: DictConfig, other: DictConfig) -> int:
    """Return the number of epochs before p differs; 0 if two runs differ in another option.

    >>> one = OmegaConf.create({"p": -0.5, "max_epochs": 30})
    >>> other = OmegaConf.create({"p": {"schedule": "steps", 1: -0.5, 11: 0}, "max_epochs": 30})
    >>> shared_epochs(one, other)
    10
    """
    configs = []
    schedules = []
    for cfg in (one, other):
        config: Any = OmegaConf.to_container(cfg, resolve=True)
        config.pop("share_epochs", None)
        p = config.pop("p")
        if p is None:
            return 0
        configs.append(config)
        schedules.append(as_schedule(p, epochs=cfg.max_epochs))
    if configs[0] != configs[1]:
        return 0
    first, second = schedules
    for epoch in range(one.max_epochs):
        if first(epoch) != second(epoch):
            return epoch
    return int(one.max_epochs)
