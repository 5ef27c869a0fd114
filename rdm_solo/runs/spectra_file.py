"""``spectra.npz``: arrays of every measured epoch, whole on the disk at any moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rdm_solo.runs.files import write_whole

__all__ = ["Archive", "stacked"]

Arrays = Mapping[str, np.ndarray]


class Archive:
    """One file of arrays whose first axis are epochs; it is rewritten with each, in one move."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.epochs: list[Arrays] = []

    def resume(self, path: Path, before: int) -> None:
        """Take over the epochs below ``before`` of another run's file."""
        with np.load(path) as file:
            saved = {name: file[name] for name in file.files}
        past = np.flatnonzero(saved["epoch"] < before)
        self.epochs = [{name: array[row] for name, array in saved.items()} for row in past]

    def add(self, arrays: Arrays) -> None:
        self.epochs.append(arrays)
        write_whole(self.path, lambda file: np.savez(file, **stacked(self.epochs)))


def stacked(epochs: Sequence[Arrays]) -> dict[str, Any]:
    """Epochs on top of each other; what one lacks, or has fewer of, is NaN (0 of whole numbers).

    A run that goes on may have been begun by an earlier version, or with other options.

    >>> stacked([{"a": np.ones(1)}, {"a": np.ones(2), "n": np.array(3)}])
    {'a': array([[ 1., nan],
           [ 1.,  1.]]), 'n': array([0, 3])}
    """
    kinds = {name: array for epoch in epochs for name, array in epoch.items()}
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
