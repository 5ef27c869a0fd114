"""A run's checkpoints: ``checkpoints/last.ckpt``, and ``previous.ckpt`` for when it is broken."""

import errno
import logging
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from rdm_solo.messages import CannotWrite, UserError
from rdm_solo.methods import torch_files, weight_files
from rdm_solo.methods.weight_files import Spec, Weights
from rdm_solo.runs import reading
from rdm_solo.runs.files import BEST, CHECKPOINT, PREVIOUS, write_whole
from rdm_solo.runs.folder import diverged_in
from rdm_solo.runs.saved_config import source, to_build, with_references

log = logging.getLogger("rdm_solo")

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


def of_run(
    run: str | Path,
    checkpoint: str | Path | None = None,
    typed: Mapping[str, Any] | None = None,
) -> tuple[Weights, Spec]:
    """A run's last weights, or those of another of its checkpoints, and its backbone.

    ``typed`` are options of the backbone that the user gave; they must be the run's own.
    """
    folder, typed = Path(run), typed or {}
    built = to_build(with_references(folder), folder, ["backbone"], typed)
    for key, value in typed.items():
        if OmegaConf.select(built, key) != value:
            raise UserError(
                f"{key}={value} would be ignored: run={run} says what its backbone is; leave it "
                "out."
            )
    config: Any = OmegaConf.to_container(built)
    backbone = config.get("backbone")
    backbone = backbone if isinstance(backbone, dict) else {}
    name, stem, kwargs = (backbone.get(key) for key in ("name", "stem", "kwargs"))
    if not isinstance(name, str) or not isinstance(stem, str) or not isinstance(kwargs, dict):
        raise reading.Unreadable(source(folder), "it does not say what its backbone is")
    spec = Spec(name, stem, {key: value for key, value in kwargs.items() if value is not None})
    path, saved = (Path(checkpoint), None) if checkpoint else latest(folder)
    weights = weight_files.read(path, saved)
    if diverged := diverged_in(folder):
        log.warning(
            f"warning: run={run} diverged in epoch {diverged}; {path.name} is of epoch "
            f"{weights.epoch}."
        )
    return weights, spec


def present(folder: Path) -> list[Path]:
    """The run's last checkpoint and the one before it, as far as they are there."""
    names = [name for name in (CHECKPOINT, PREVIOUS) if (folder / name).is_file()]
    return [reading.inside(folder, name) for name in names]


def found(folder: Path) -> list[Path]:
    """Those that are :func:`present`; ValueError where there is none."""
    if there := present(folder):
        return there
    diverged = diverged_in(folder)
    why = f"it diverged in epoch {diverged}" if diverged else "let the run finish an epoch"
    raise UserError(f"{folder} has no {CHECKPOINT}: {why}.")


def latest(folder: Path, quiet: bool = False) -> tuple[Path, dict[str, Any]]:
    """The last checkpoint that can be read, and its content; ValueError where none can.

    The log says where it is not the last one, unless ``quiet``.
    """
    broken: list[str] = []
    for path in found(folder):
        try:
            saved = read(path)
        except ValueError as error:
            broken.append(str(error))
            continue
        if path != folder / CHECKPOINT and not quiet:
            why = broken[0] if broken else f"{folder / CHECKPOINT} is not there"
            log.warning(f"warning: {why}; {path.name}, of epoch {saved['epoch'] + 1}, is taken")
        return path, saved
    raise UserError("; ".join(broken))


def read(path: Path) -> dict[str, Any]:
    """A checkpoint of Lightning's; ValueError where it is none, is torn, bytes have changed, or a
    weight is not finite."""
    saved: Any = torch_files.read(path)
    epoch = saved.get("epoch") if isinstance(saved, dict) else None
    if (
        isinstance(epoch, bool)
        or not isinstance(epoch, int)
        or not 0 <= epoch < reading.MOST_EPOCHS
    ):
        raise UserError(f"{path} cannot be read as a checkpoint of a run: it names no epoch")
    if not isinstance(saved.get("state_dict"), Mapping):
        raise UserError(f"{path} cannot be read as a checkpoint of a run: it holds no weights")
    weight_files.check_finite(saved["state_dict"], path)
    checked: dict[str, Any] = saved
    return checked


def write(path: Path, content: Mapping[str, Any], earlier: Path | None = None) -> None:
    """Write a checkpoint in one step; the one that had the name so far becomes ``earlier``.

    Where the disk has no space for three, the older two make room one after the other, as long as
    the newer one is whole.
    """

    save = partial(torch.save, content)
    try:
        write_whole(path, save, earlier)
    except CannotWrite as error:
        if error.errno not in NO_SPACE or earlier is None or not earlier.is_file():
            raise
        try:
            read(path)
        except ValueError:  # the earlier one is all that there is
            raise error from None
        earlier.unlink()
        write_whole(path, save, earlier)


def of_epoch(folder: Path, epoch: int) -> Path:
    """Where a kept checkpoint of that epoch, counted from 1, is."""
    return folder / "checkpoints" / f"epoch_{epoch:04d}.ckpt"


def kept(folder: Path) -> dict[int, Path]:
    """The kept checkpoints by their epochs, the first one first."""
    by_epoch = {}
    for path in (folder / "checkpoints").glob("epoch_*.ckpt"):
        if number := re.fullmatch(r"epoch_(\d+)", path.stem):
            by_epoch[int(number[1])] = path
    return dict(sorted(by_epoch.items()))


def begin(folder: Path, done: int) -> None:
    """Prepare a folder for a run of which ``done`` epochs are over: later checkpoints go.

    The last one stays until the next is written.
    """
    later = [path for epoch, path in kept(folder).items() if epoch > done]
    if not done:
        later += [folder / PREVIOUS, folder / BEST]
    for path in later:
        path.unlink(missing_ok=True)
