"""Spectra of a run: the arrays of each measured epoch in a file of its own.

``spectra/epoch_0001.npz`` holds eigenvalues, curves and counts of the first epoch, and its number
as ``epoch``. Earlier versions kept all epochs in one ``spectra.npz``, counted from 0.
"""

import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rdm_solo.messages import UserError
from rdm_solo.runs import reading
from rdm_solo.runs.files import OLD_SPECTRA, SPECTRA, write_whole, writing

MOST_VALUES = 2**28

Arrays = Mapping[str, np.ndarray]


def write(folder: Path, epoch: int, arrays: Arrays) -> None:
    """Write the arrays of an epoch, counted from 1, in the run's folder."""
    with writing(folder / SPECTRA):
        (folder / SPECTRA).mkdir(exist_ok=True)  # but not the run's folder, if somebody removed it
    content: dict[str, Any] = {"epoch": np.array(epoch), **arrays}
    write_whole(_path(folder, epoch), lambda file: np.savez(file, **content))


def begin(folder: Path, done: int, earlier: Path | None = None) -> None:
    """Prepare a folder for a run of which ``done`` epochs are over.

    Their spectra are kept, or come from the folder of an ``earlier`` run that goes on here; later
    ones are removed, and a file of the old format is rewritten as one file an epoch.
    """
    source = earlier or folder
    found = read_epochs(source)[0] if done else {}
    past = {epoch: arrays for epoch, arrays in found.items() if epoch <= done}
    moved = source.resolve() != folder.resolve()
    kept = set() if moved else {_path(folder, epoch) for epoch in past}
    for path in set((folder / SPECTRA).glob("*.npz")) - kept:
        path.unlink()
    for epoch, arrays in past.items():
        if not _path(folder, epoch).exists():
            write(folder, epoch, arrays)
    (folder / OLD_SPECTRA).unlink(missing_ok=True)


def read(folder: Path) -> tuple[dict[str, np.ndarray], list[str]]:
    """A run's spectra with the epochs as first axis, and the names of files that are broken.

    ``epoch`` counts from 1. A run without spectra gives an empty dict. A run that goes on may have
    been started by an earlier version, or with other options, and have fewer arrays or smaller ones
    in its first epochs: missing entries are NaN (0 of whole numbers).
    """
    found, broken = read_epochs(folder)
    epochs = [found[epoch] for epoch in sorted(found)]
    stacked = {}
    for name in dict.fromkeys(name for arrays in epochs for name in arrays):
        rows = {i: arrays[name] for i, arrays in enumerate(epochs) if name in arrays}
        shape = np.max([row.shape for row in rows.values()], axis=0).astype(int)
        if len(epochs) * math.prod(map(int, shape)) > MOST_VALUES:
            raise UserError(f"{name} of all epochs would fill the memory")
        kind = rows[max(rows)].dtype
        fill = np.nan if np.issubdtype(kind, np.floating) else 0
        stacked[name] = np.full((len(epochs), *shape), fill, dtype=kind)
        for i, row in rows.items():
            corner: Any = (i, *map(slice, row.shape))
            stacked[name][corner] = row
    return stacked, broken


def read_epochs(folder: Path) -> tuple[dict[int, Arrays], list[str]]:
    """The arrays of each measured epoch, counted from 1, and the names of files that are broken."""
    found: dict[int, Arrays] = {}
    broken = []
    for path in [folder / OLD_SPECTRA, *sorted((folder / SPECTRA).glob("*.npz"))]:
        try:
            arrays = _arrays(folder, path.relative_to(folder))
            if path.name == OLD_SPECTRA:
                arrays["epoch"] = arrays["epoch"] + 1
                for row, epoch in enumerate(arrays["epoch"]):
                    found[int(epoch)] = {name: array[row] for name, array in arrays.items()}
            else:
                found[int(arrays["epoch"])] = arrays
        except FileNotFoundError:
            continue
        except Exception:  # what a torn or foreign file raises depends on where it differs
            broken.append(str(path.relative_to(folder)))
    return found, broken


def _arrays(folder: Path, name: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, of numbers alone."""
    path = reading.regular(folder, name, reading.MOST_ARRAYS)
    with zipfile.ZipFile(path) as file:
        if sum(member.file_size for member in file.infolist()) > reading.MOST_ARRAYS:
            raise UserError("it is larger than any run's")
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    if any(array.dtype.kind not in "iufb" for array in arrays.values()):
        raise UserError("an array holds no numbers")
    if not 0 <= int(arrays["epoch"].min()) <= int(arrays["epoch"].max()) < reading.MOST_EPOCHS:
        raise UserError("it names no epoch")
    return arrays


def _path(folder: Path, epoch: int) -> Path:
    return folder / SPECTRA / f"epoch_{epoch:04d}.npz"
