"""Read and write a run's spectra: ``spectra/epoch_0001.npz`` has the first epoch's arrays."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rdm_solo.ground.errors import UserError
from rdm_solo.runs import files
from rdm_solo.runs.files import SPECTRA, write_atomically, writing

Arrays = Mapping[str, np.ndarray]


def write(folder: Path, epoch: int, arrays: Arrays) -> None:
    """Write the arrays of an epoch, counted from 1, to the run's folder."""
    with writing(folder / SPECTRA):
        (folder / SPECTRA).mkdir(exist_ok=True)
    content: dict[str, Any] = {"epoch": np.array(epoch), **arrays}
    write_atomically(_path(folder, epoch), lambda file: np.savez(file, **content))


def truncate(folder: Path, done: int) -> None:
    """Remove the spectra after epoch ``done``, from which a run resumes."""
    for path in (folder / SPECTRA).glob("*.npz"):
        _, _, number = path.stem.partition("_")
        if int(number) > done:
            path.unlink()


def read(folder: Path) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return a run's spectra with epochs as the first axis, and the names of broken files.

    The dict is empty if a run has no spectra. Epochs before a change of the diagnostics, whose
    arrays differ in name or shape from the last epoch's, are left out.
    """
    by_epoch, broken = read_epochs(folder)
    stacks: dict[str, list[np.ndarray]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for _, arrays in sorted(by_epoch.items()):
        previous, shapes = shapes, {name: array.shape for name, array in arrays.items()}
        if shapes != previous:
            stacks = {name: [] for name in arrays}
        for name, array in arrays.items():
            stacks[name].append(array)
    return {name: np.stack(epochs) for name, epochs in stacks.items()}, broken


def read_epochs(folder: Path) -> tuple[dict[int, Arrays], list[str]]:
    """Return the arrays of each measured epoch, and the names of broken files."""
    by_epoch: dict[int, Arrays] = {}
    broken: list[str] = []
    for path in sorted((folder / SPECTRA).glob("*.npz")):
        name = path.relative_to(folder)
        try:
            with np.load(files.inside(folder, name), allow_pickle=False) as file:
                arrays = dict(file)
            if any(array.dtype.kind not in "iufb" for array in arrays.values()):
                raise UserError("an array is not numeric")
            by_epoch[int(arrays["epoch"])] = arrays
        except Exception:  # the kind of error depends on where a file was cut off
            broken.append(str(name))
    return by_epoch, broken


def _path(folder: Path, epoch: int) -> Path:
    return folder / SPECTRA / f"epoch_{epoch:04d}.npz"
