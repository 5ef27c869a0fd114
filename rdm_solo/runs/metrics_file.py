"""metrics.csv: one row per epoch, counted from 1, and row 0 for the untrained network."""

import csv
import io
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
    """Return metrics.csv by column, its row 0, and the first epoch whose loss is not finite."""
    reader = csv.DictReader(io.StringIO(files.read_text(folder, METRICS)))
    rows = list(reader)
    untrained: dict[str, float] = {}
    if rows and rows[0].get("epoch") == "0":
        for name, text in rows.pop(0).items():
            if text and name != "epoch":
                untrained[name] = float(text)
    columns = {}
    measured = {}
    for name in reader.fieldnames or ():
        texts = np.array([row[name] or "" for row in rows], dtype=object)
        measured[name] = texts != ""
        columns[name] = np.where(measured[name], texts, "nan").astype(float)
    epochs = columns.get("epoch", np.zeros(1))
    if not ((epochs >= 1) & (epochs == epochs.round())).all():
        raise UserError("its column epoch is missing or has values other than 1, 2, 3, ...")
    diverged = None
    if "train/loss" in columns:
        not_finite = measured["train/loss"] & ~np.isfinite(columns["train/loss"])
        if not_finite.any():
            diverged = int(epochs[not_finite][0])
    return Table(columns, measured, diverged, untrained)


def read_metrics(folder: Path) -> dict[str, np.ndarray]:
    """Return the epochs of a run's ``metrics.csv`` by column; NaN: not measured or not finite."""
    return read(folder).columns


def truncate(folder: Path, done: int) -> list[dict[str, float]]:
    """Drop the rows after epoch ``done``, from which a run resumes, and return the others."""
    rows: list[dict[str, float]] = []
    if done and (folder / METRICS).is_file():
        reader = csv.DictReader(io.StringIO(files.read_text(folder, METRICS)))
        for texts in reader:
            epoch = int(float(texts.pop("epoch")))  # a spreadsheet writes 1.0
            if epoch <= done:
                values = {name: float(text) for name, text in texts.items() if text}
                rows.append({"epoch": epoch, **values})
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

    >>> values = last_values({"epoch": [1.0, 2.0], "val/knn_acc1": [90.0, float("nan")]})
    >>> values["last"]
    {'epoch': 2.0, 'val/knn_acc1': None}
    >>> values["last_measured"]
    {'val/knn_acc1': {'epoch': 1, 'value': 90.0}}
    """
    last: dict[str, Any] = {}
    earlier: dict[str, Any] = {}
    for name, values in columns.items():
        last[name] = None
        rows = np.flatnonzero(np.isfinite(values))
        if not len(rows):
            continue
        row = int(rows[-1])
        if row == len(values) - 1:
            last[name] = values[row]
        else:
            earlier[name] = {"epoch": int(columns["epoch"][row]), "value": values[row]}
    return {"last": last, "last_measured": earlier}
