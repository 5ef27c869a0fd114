"""Read and write a run's checkpoints: ``last.ckpt`` and, in case of damage, ``previous.ckpt``."""

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from omegaconf import OmegaConf

from rdm_solo.ground.errors import UserError
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
    """Return the backbone's weights, from the run's last or the given checkpoint, and its spec.

    ``passed`` has trusted backbone options from the command line, which must equal the run's.
    """
    from rdm_solo.methods import weight_files  # not needed for training

    folder = Path(run)
    passed = passed or {}
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
    if checkpoint:
        return weight_files.read(Path(checkpoint)), spec
    return weight_files.read(*latest(folder)), spec


def present(folder: Path) -> list[Path]:
    """Return the paths of the last and the previous checkpoint that exist."""
    return [
        files.inside(folder, name) for name in (CHECKPOINT, PREVIOUS) if (folder / name).is_file()
    ]


def latest(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return path and content of the last readable checkpoint; raise UserError if there is none.

    A warning is logged if ``last.ckpt`` is damaged and ``previous.ckpt`` is used.
    """
    damaged: list[str] = []
    for path in present(folder):
        try:
            content = read(path)
        except UserError as error:
            damaged.append(str(error))
            continue
        if damaged:
            log.warning(f"warning: {damaged[0]}; using {path.name} of epoch {epochs(content)}")
        return path, content
    raise UserError("; ".join(damaged) or f"{folder} has no {CHECKPOINT}: no epoch has finished.")


def epochs(content: Mapping[str, Any]) -> int:
    """Return the number of finished epochs in a checkpoint."""
    return int(content["epoch"]) + 1


def read(path: Path) -> dict[str, Any]:
    """Read a checkpoint; raise UserError if it is damaged or has a weight that is not finite."""
    from rdm_solo.methods import weight_files

    content: Any = weight_files.read_file(path)
    if not isinstance(content, dict) or not {"epoch", "state_dict"} <= content.keys():
        raise UserError(f"{path} cannot be read as a checkpoint of a run.")
    weight_files.check_finite(content["state_dict"], path)
    return content


def write(path: Path, content: Mapping[str, Any], previous: Path | None = None) -> None:
    """Write a checkpoint atomically; rename an existing file to ``previous``."""
    write_atomically(path, partial(torch.save, content), previous)


def by_epoch(folder: Path) -> dict[int, Path]:
    """Return the paths of ``epoch_*.ckpt`` by epoch, counted from 1, in ascending order."""
    paths = {}
    for path in (folder / "checkpoints").glob("epoch_*.ckpt"):
        number = path.stem.removeprefix("epoch_")
        if number.isdigit():
            paths[int(number)] = path
    return dict(sorted(paths.items()))
