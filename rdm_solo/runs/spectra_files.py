"""Spectra of a run: the arrays of each measured epoch in a file of its own.

``spectra/epoch_0001.npz`` holds eigenvalues, curves and counts of the first epoch, and its number
as ``epoch``. Earlier versions kept all epochs in one ``spectra.npz``, counted from 0.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rdm_solo.runs.files import OLD_SPECTRA, SPECTRA, write_whole

__all__ = ["begin", "read", "read_epochs", "stacked", "write"]

Arrays = Mapping[str, np.ndarray]


def write(folder: Path, epoch: int, arrays: Arrays) -> None:
    """Write the arrays of an epoch, counted from 1, in the run's folder."""
    (folder / SPECTRA).mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {"epoch": np.array(epoch), **arrays}
    write_whole(_path(folder, epoch), lambda file: np.savez(file, **content))


def begin(folder: Path, done: int, earlier: Path | None = None) -> None:
    """Prepare a folder for a run of which ``done`` epochs are over.

    Their spectra are kept, or come from the folder of an ``earlier`` run that goes on here; later
    ones are removed, and a file of the old format is rewritten as one file an epoch.
    """
    source = earlier or folder
    past = read_epochs(source)[0] if done else {}
    past = {epoch: arrays for epoch, arrays in past.items() if epoch <= done}
    moved = source.resolve() != folder.resolve()
    for path in (folder / SPECTRA).glob("*.npz"):
        if moved or path not in {_path(folder, epoch) for epoch in past}:
            path.unlink()
    for epoch, arrays in past.items():
        if not _path(folder, epoch).exists():
            write(folder, epoch, arrays)
    (folder / OLD_SPECTRA).unlink(missing_ok=True)


def read(folder: Path) -> tuple[dict[str, np.ndarray], list[str]]:
    """A run's spectra with the epochs as first axis, and the names of files that are broken.

    ``epoch`` counts from 1. A run without spectra gives an empty dict.
    """
    epochs, broken = read_epochs(folder)
    return stacked([epochs[epoch] for epoch in sorted(epochs)]), broken


def read_epochs(folder: Path) -> tuple[dict[int, Arrays], list[str]]:
    """The arrays of each measured epoch, counted from 1, and the names of files that are broken."""
    found: dict[int, Arrays] = {}
    broken = []
    for path in [folder / OLD_SPECTRA, *sorted((folder / SPECTRA).glob("*.npz"))]:
        try:
            with np.load(path) as file:
                arrays = {name: file[name] for name in file.files}
            if path.name == OLD_SPECTRA:
                arrays["epoch"] = arrays["epoch"] + 1
                for row, epoch in enumerate(arrays["epoch"]):
                    found[int(epoch)] = {name: array[row] for name, array in arrays.items()}
            else:
                found[int(arrays["epoch"])] = arrays
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError, IndexError, TypeError, EOFError, zipfile.BadZipFile):
            broken.append(str(path.relative_to(folder)))
    return found, broken


def stacked(epochs: Sequence[Arrays]) -> dict[str, Any]:
    """The arrays of several epochs, stacked; missing entries are NaN (0 of whole numbers).

    A run that goes on may have been started by an earlier version, or with other options, and have
    fewer arrays or smaller ones in its first epochs.

    >>> stacked([{"a": np.ones(1)}, {"a": np.ones(2), "n": np.array(3)}])
    {'a': array([[ 1., nan],
           [ 1.,  1.]]), 'n': array([0, 3])}
    """
    kinds = {name: np.asarray(array) for epoch in epochs for name, array in epoch.items()}
    found = {}
    for name, kind in kinds.items():
        rows = [np.asarray(epoch[name]) if name in epoch else None for epoch in epochs]
        shape = np.max([row.shape for row in rows if row is not None], axis=0).astype(int)
        fill = np.nan if np.issubdtype(kind.dtype, np.floating) else 0
        whole = np.full((len(epochs), *shape), fill, dtype=kind.dtype)
        for index, row in enumerate(rows):
            if row is not None:
                corner: Any = (index, *map(slice, row.shape))
                whole[corner] = row
        found[name] = whole
    return found


def _path(folder: Path, epoch: int) -> Path:
    return folder / SPECTRA / f"epoch_{epoch:04d}.npz"
