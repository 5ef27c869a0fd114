"""Read and write a run's spectra: ``spectra/epoch_0001.npz`` has the first epoch's arrays."""

from collections.abc import Mapping, Sequence
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
    path = folder / SPECTRA / f"epoch_{epoch:04d}.npz"
    write_atomically(path, lambda file: np.savez(file, **content))


def truncate(folder: Path, done: int) -> None:
    """Remove the spectra after epoch ``done``, from which a run resumes."""
    for path in (folder / SPECTRA).glob("*.npz"):
        _, _, number = path.stem.partition("_")
        if int(number) > done:
            path.unlink()


def read(folder: Path) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return a run's spectra with epochs as the first axis, and the names of broken files.

    The dict is empty if a run has no spectra. Epochs whose arrays differ in name or shape from the
    last epoch's, as after a change of the diagnostics, are left out.
    """
    by_epoch, broken = read_epochs(folder)
    epochs = [by_epoch[epoch] for epoch in sorted(by_epoch)]
    alike = [arrays for arrays in epochs if _shapes(arrays) == _shapes(epochs[-1])]
    return stack(alike), broken


def stack(spectra: Sequence[Arrays]) -> dict[str, np.ndarray]:
    """Stack the arrays of several epochs or runs by name; a name that one of them lacks is dropped.

    >>> stack([{"rows": np.array(7), "lam": np.ones(2)}, {"rows": np.array(8)}])
    {'rows': array([7, 8])}
    """
    stacks: dict[str, np.ndarray] = {}
    if spectra:
        for name in sorted(set.intersection(*map(set, spectra))):
            stacks[name] = np.stack([arrays[name] for arrays in spectra])
    return stacks


def _shapes(arrays: Arrays) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in arrays.items()}


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
