"""Curves of asymmetric designs, kept in roles.json of a run's folder."""

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rdm_solo.runs import reading
from rdm_solo.runs.files import ROLES, write_whole

log = logging.getLogger("rdm_solo")


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


def write(roles: Roles, key: dict[str, Any]) -> None:
    """Write ``roles.json`` where the folder can be written to."""
    plain = {**asdict(roles), "folder": None, "key": key}
    try:
        write_whole(roles.folder / ROLES, json.dumps(plain, default=np.ndarray.tolist))
    except OSError as error:
        log.warning(f"warning: {ROLES} cannot be kept in {roles.folder} ({error.strerror}).")


def read(folder: Path, key: dict[str, Any]) -> Roles | None:
    """The curves that were written with that key; None where there are none."""
    try:
        plain = reading.read_object(folder, ROLES)
        if plain.pop("key") != key:
            return None
        series = [
            Series(**{**s, "lam": _numbers(s["lam"]), "value": _numbers(s["value"])})
            for s in plain["series"]
        ]
        found = Roles(**{**plain, "folder": folder, "series": tuple(series)})
        if _sound(found):
            return found
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # torn, or somebody else's
        pass
    log.warning(f"warning: {folder / ROLES} cannot be read, and is made anew.")
    return None


def _numbers(values: Any) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def _sound(roles: Roles) -> bool:
    """Whether the values are of their kinds, so that they can be drawn and printed."""
    curves = [(s.name, s.group, s.monotonicity, s.slope, s.erank) for s in roles.series]
    words = [roles.method, roles.label, roles.branch, roles.own, roles.note]
    words += [word for curve in curves for word in curve[:2]]
    numbers = [roles.erank, *(number for curve in curves for number in curve[2:])]
    counts = [roles.seed, roles.rows, roles.batch, roles.epoch]
    return (
        bool(roles.series)
        and roles.branch in ("online", "target")
        and all(isinstance(word, str) and word.isprintable() for word in words)
        and all(isinstance(number, float) for number in numbers)
        and all(isinstance(count, int) and abs(count) < 2**53 for count in counts)
        and all(s.lam.ndim == 1 and s.lam.shape == s.value.shape for s in roles.series)
    )
