"""Curves of asymmetric designs, kept in roles.npz of a run's folder."""

from __future__ import annotations

import json
import logging
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rdm_solo.runs.files import ROLES, write_whole

__all__ = ["Roles", "Series"]


@dataclass(frozen=True, eq=False)
class Series:
    """One curve over eigenvalues that descend, of those that hold 99.99 % of their sum.

    Args:
        name: what is varied, such as ``1 iteration``.
        group: curves of one group share their dashes.
        lam: horizontal axis, ``(m,)``.
        value: ω, g or h there, ``(m,)``.
        monotonicity: Spearman's rank correlation of both. A curve that is almost flat has one, too.
        slope: of log value over log lam, least squares: how steep the filter is. ``target_pow``
            with exponent p behind alike branches would have p/2.
        erank: effective rank of the outputs behind the filter.
    """

    name: str
    group: str
    lam: np.ndarray
    value: np.ndarray
    monotonicity: float
    slope: float
    erank: float


log = logging.getLogger("rdm_solo")


FORMAT = 2  # of roles.npz; another one is measured anew


@dataclass(frozen=True, eq=False)
class Roles:
    """A run's curves, and what they depend on.

    Args:
        folder: the run's.
        method: its name in the config.
        label: method and filter in the paper's words.
        seed: the run's.
        branch: ``online`` where the curves are filters of the online branch (ω, g), ``target``
            where they are the target's (h).
        series: the curves.
        own: name of the one that the run trained with.
        erank: effective rank of the other branch, with which each curve's is to be compared.
        rows: view rows that entered.
        batch: images of a batch.
        epoch: the checkpoint's.
        note: what else a reader has to know, such as the online temperature.
    """

    folder: Path
    method: str
    label: str
    seed: int
    branch: str
    series: tuple[Series, ...]
    own: str
    erank: float
    rows: int
    batch: int
    epoch: int
    note: str = ""


def _write(roles: Roles, key: dict[str, Any]) -> None:
    """``roles.npz``, all at once; a folder that cannot be written to goes without."""
    plain = {name: getattr(roles, name) for name in KEPT}
    plain["series"] = [[s.name, s.group, s.monotonicity, s.slope, s.erank] for s in roles.series]
    arrays: dict[str, Any] = {f"lam_{i}": s.lam for i, s in enumerate(roles.series)}
    arrays |= {f"value_{i}": s.value for i, s in enumerate(roles.series)}
    arrays["about"] = np.array(json.dumps({"key": key, **plain}))
    try:
        write_whole(roles.folder / ROLES, lambda file: np.savez(file, **arrays))
    except OSError as error:
        log.warning(f"warning: roles.npz cannot be kept in {roles.folder} ({error.strerror}).")


KEPT = ("method", "label", "seed", "branch", "own", "erank", "rows", "batch", "epoch", "note")


def _read(folder: Path, key: dict[str, Any]) -> Roles | None:
    try:
        with np.load(folder / ROLES) as saved:
            about = json.loads(str(saved["about"]))
            if about["key"] != key:
                return None
            series = [
                Series(name, group, saved[f"lam_{i}"], saved[f"value_{i}"], *numbers)
                for i, (name, group, *numbers) in enumerate(about["series"])
            ]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    return Roles(folder=folder, series=tuple(series), **{name: about[name] for name in KEPT})
