"""metrics.csv: one row per epoch, counted from 1, and row 0 for the untrained network."""

import csv
import io
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from rdm_solo.ground.errors import UserError
from rdm_solo.runs import files
from rdm_solo.runs.columns import COLUMNS
from rdm_solo.runs.files import METRICS, SUMMARY, write_table


class Table(NamedTuple):
    """The content of ``metrics.csv``; row 0 is in ``untrained``."""

    columns: dict[str, np.ndarray]  # NaN: not measured, or not finite
    measured: dict[str, np.ndarray]  # whether a row has a value, which may be NaN
    diverged: int | None = None  # the first epoch with a loss that is not finite
    untrained: Mapping[str, float] = MappingProxyType({})


def read(folder: Path) -> Table:
    """Read a run's table."""
    reader = csv.DictReader(io.StringIO(files.read_text(folder, METRICS)))
    rows = list(reader)
    names = [name for name in reader.fieldnames or () if name]
    untrained: dict[str, float] = {}
    if rows and rows[0].get("epoch") == "0":
        untrained = {name: float(x) for name, x in rows.pop(0).items() if name != "epoch" and x}
    columns = {name: np.array([float(row[name] or "nan") for row in rows]) for name in names}
    measured = {name: np.array([bool(row[name]) for row in rows], dtype=bool) for name in names}
    epochs = columns.get("epoch", np.empty(0))
    if not ((epochs >= 1) & (epochs == epochs.round())).all():
        raise UserError("its column epoch has values other than 1, 2, 3, ...")
    losses = columns.get("train/loss", np.empty(0))
    broken = np.flatnonzero(measured.get("train/loss", losses != losses) & ~np.isfinite(losses))
    diverged = int(epochs[broken[0]]) if len(broken) and len(epochs) else None
    return Table(columns, measured, diverged, untrained)


def read_metrics(folder: Path) -> dict[str, np.ndarray]:
    """Return the epochs of a run's ``metrics.csv`` by column; NaN: not measured or not finite."""
    return read(folder).columns


def truncate(folder: Path, done: int) -> list[dict[str, float]]:
    """Drop the rows after epoch ``done``, from which a run resumes, and return the others."""
    rows: list[dict[str, float]] = []
    if done and (folder / METRICS).is_file():
        columns, _, _, untrained = read(folder)
        if untrained:
            rows.append({"epoch": 0, **untrained})
        for values in zip(*columns.values()):
            row = {name: float(v) for name, v in zip(columns, values) if not np.isnan(v)}
            if row["epoch"] <= done:
                rows.append({**row, "epoch": int(row["epoch"])})
    if rows:
        write(folder, rows)
    else:
        (folder / METRICS).unlink(missing_ok=True)
    (folder / SUMMARY).unlink(missing_ok=True)  # written at the end of the previous start
    return rows


def write(folder: Path, rows: Iterable[Mapping[str, float]]) -> None:
    """Write the whole table."""
    write_table(folder / METRICS, COLUMNS, rows)


def last_values(columns: Mapping[str, list[float]]) -> dict[str, dict[str, Any]]:
    """Return the last epoch's values and, for columns that lack one, the last earlier value.

    >>> values = last_values({"epoch": [1.0, 2.0], "val/knn_acc1": [90.0, math.nan]})
    >>> values["last"]
    {'epoch': 2.0, 'val/knn_acc1': None}
    >>> values["last_measured"]
    {'val/knn_acc1': {'epoch': 1, 'value': 90.0}}
    """
    last: dict[str, Any] = {}
    earlier: dict[str, Any] = {}
    for name, values in columns.items():
        rows = [row for row, value in enumerate(values) if math.isfinite(value)]
        measured_last = rows[-1:] == [len(values) - 1]
        last[name] = values[-1] if measured_last else None
        if rows and not measured_last:
            epoch = int(columns["epoch"][rows[-1]])
            earlier[name] = {"epoch": epoch, "value": values[rows[-1]]}
    return {"last": last, "last_measured": earlier}
