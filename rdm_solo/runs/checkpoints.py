"""A run's checkpoints: ``checkpoints/last.ckpt``, and its predecessor for when it is damaged."""

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from omegaconf import OmegaConf

from rdm_solo.messages import UserError
from rdm_solo.runs import files, saved_config
from rdm_solo.runs.files import CHECKPOINT, PREVIOUS, write_atomically

if TYPE_CHECKING:
    from rdm_solo.methods.weight_files import Spec, Weights

log = logging.getLogger("rdm_solo")


def read_backbone(
    run: str | Path,
    checkpoint: str | Path | None = None,
    passed: Mapping[str, Any] | None = None,
) -> "tuple[Weights, Spec]":
    """Return a run's last weights, or those of another of its checkpoints, and its backbone.

    ``passed`` are options of the backbone that the user passed; they must equal the run's.
    """
    from rdm_solo.methods import weight_files  # reads files alone, so no run starts with it

    folder, passed = Path(run), passed or {}
    config = saved_config.unresolved_config(folder)
    config = saved_config.trusted_config(config, folder, ["backbone"], passed)
    for key, value in passed.items():
        if OmegaConf.select(config, key) != value:
            raise UserError(
                f"{key}={value} would be ignored: run={run} has another backbone; leave it out."
            )
    backbone: Any = OmegaConf.to_container(config.backbone)
    kwargs = {key: value for key, value in backbone["kwargs"].items() if value is not None}
    spec = weight_files.Spec(backbone["name"], backbone["stem"], kwargs)
    path, content = (Path(checkpoint), None) if checkpoint else latest(folder)
    return weight_files.read(path, content), spec


def present(folder: Path) -> list[Path]:
    """Return the paths of the last checkpoint and its predecessor, as far as they exist."""
    names = [name for name in (CHECKPOINT, PREVIOUS) if (folder / name).is_file()]
    return [files.inside(folder, name) for name in names]


def latest(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return the path and the content of the last checkpoint that can be read.

    Logs a warning if it is not the last one. Raises UserError if there is none.
    """
    damaged: list[str] = []
    for path in present(folder):
        try:
            content = read(path)
        except UserError as error:
            damaged.append(str(error))
            continue
        if damaged:
            log.warning(f"warning: {damaged[0]}; {path.name} of epoch {epochs(content)} is used")
        return path, content
    raise UserError("; ".join(damaged) or f"{folder} has no {CHECKPOINT}: no epoch has finished.")


def epochs(content: Mapping[str, Any]) -> int:
    """Return the number of epochs that were finished when a checkpoint was written."""
    return int(content["epoch"]) + 1


def read(path: Path) -> dict[str, Any]:
    """Read a checkpoint of a run; UserError if it is damaged or a weight is not finite."""
    from rdm_solo.methods import weight_files

    content: Any = weight_files.read_file(path)
    if not isinstance(content, dict) or not {"epoch", "state_dict"} <= content.keys():
        raise UserError(f"{path} cannot be read as a checkpoint of a run.")
    weight_files.check_finite(content["state_dict"], path)
    return content


def write(path: Path, content: Mapping[str, Any], previous: Path | None = None) -> None:
    """Write a checkpoint in one step; the file of that name is renamed to ``previous``."""
    write_atomically(path, partial(torch.save, content), previous)


def epoch_path(folder: Path, epoch: int) -> Path:
    """Return the path of the checkpoint that is kept of an epoch, counted from 1."""
    return folder / "checkpoints" / f"epoch_{epoch:04d}.ckpt"


def by_epoch(folder: Path) -> dict[int, Path]:
    """Return the checkpoints that are kept, by epoch in ascending order."""
    paths = (folder / "checkpoints").glob("epoch_*.ckpt")
    numbers = [(path.stem.removeprefix("epoch_"), path) for path in paths]
    return dict(sorted((int(number), path) for number, path in numbers if number.isdigit()))
