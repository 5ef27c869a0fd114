"""metrics.csv: one row an epoch, with the columns of :mod:`rdm_solo.runs.columns`.

Epochs count from 1. A run's folder says so by the number in ``format.json``; folders without one
were written by earlier versions, which counted from 0.
"""

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rdm_solo.messages import UserError, shown
from rdm_solo.runs import reading
from rdm_solo.runs.columns import COLUMNS
from rdm_solo.runs.files import FORMAT, METRICS, SUMMARY, write_table, write_whole

MOST_COLUMNS = 1000
NUMBER = 2  # of the format that this version writes; 1 counted epochs from 0


def folder_format(folder: Path) -> int:
    """The number of the format that a run's folder has."""
    for name in (FORMAT, SUMMARY):
        try:
            number = reading.read_object(folder, name)["format"]
        except (OSError, ValueError, KeyError):
            continue
        if isinstance(number, int):
            if number > NUMBER:
                raise UserError(
                    f"{folder} was written by a later version (format {shown(number)}, this reads "
                    f"up to {NUMBER}): update rdm-solo."
                )
            return number
    return 1


class Table(NamedTuple):
    """A run's table. What was not measured is NaN; a last row that was cut off is left out."""

    columns: dict[str, np.ndarray]
    measured: dict[str, np.ndarray]  # whether a row has the column, with a NaN that was written
    cut: bool = False
    diverged: int | None = None  # the first epoch whose loss was written, and is not finite


def read(folder: Path) -> Table:
    """The table of the run in that folder.

    A truncated number still parses, so a last row without a line end is left out.
    """
    text = reading.read_text(folder, METRICS, reading.MOST_TABLE)
    if text.partition("\n")[0].count(",") > MOST_COLUMNS:
        raise UserError(f"it has more than {MOST_COLUMNS} columns")
    reader = csv.DictReader(io.StringIO(text))
    rows = list(reader)
    cut = bool(rows) and (not text.endswith("\n") or None in rows[-1].values())
    if cut:
        rows.pop()
    names = [name for name in reader.fieldnames or () if name]
    columns = {name: np.array([float(row[name] or "nan") for row in rows]) for name in names}
    measured = {name: np.array([bool(row[name]) for row in rows], dtype=bool) for name in names}
    if "epoch" in columns:
        columns["epoch"] += folder_format(folder) == 1
        epochs = columns["epoch"]
        if not ((epochs >= 1) & (epochs < reading.MOST_EPOCHS) & (epochs == epochs.round())).all():
            raise UserError("its column epoch does not count epochs")
    losses = (row.get("train/loss") for row in rows)
    broken = [i for i, loss in enumerate(losses) if loss and not math.isfinite(float(loss))]
    epochs = columns.get("epoch", np.empty(0))
    known = [epochs[i] for i in broken[:1] if len(epochs) and np.isfinite(epochs[i])]
    return Table(columns, measured, cut, int(known[0]) if known else None)


def read_metrics(folder: Path) -> dict[str, np.ndarray]:
    """The columns of a run's ``metrics.csv``; a value that was not measured is NaN."""
    return read(folder).columns


def begin(folder: Path, done: int, earlier: Path | None = None) -> list[dict[str, float]]:
    """Prepare a folder for a run of which ``done`` epochs are over; the rows of these.

    They are the folder's own, which then keeps them alone, or those of an ``earlier`` run that
    goes on here.
    """
    source = earlier or folder
    rows: list[dict[str, float]] = []
    if done and (source / METRICS).is_file():
        columns = read_metrics(source)
        for values in zip(*columns.values()):
            row = {name: float(v) for name, v in zip(columns, values) if not np.isnan(v)}
            if row["epoch"] <= done:
                rows.append({**row, "epoch": int(row["epoch"])})
    if rows and source.resolve() == folder.resolve():
        write(folder, rows)
    else:
        (folder / METRICS).unlink(missing_ok=True)
    (folder / SUMMARY).unlink(missing_ok=True)  # of the part before, which it alone describes
    write_whole(folder / FORMAT, json.dumps({"format": NUMBER}) + "\n")
    return rows


def write(folder: Path, rows: Iterable[Mapping[str, float]]) -> None:
    """Write the whole table."""
    write_table(folder / METRICS, COLUMNS, rows)


def last_values(columns: Mapping[str, list[float]]) -> dict[str, dict[str, Any]]:
    """``last``: the values of the last epoch, None where it did not measure one.
    ``last_measured``: epoch and value of those that an earlier epoch measured last.

    >>> found = last_values({"epoch": [1.0, 2.0], "val/knn_acc1": [90.0, math.nan]})
    >>> found["last"]
    {'epoch': 2.0, 'val/knn_acc1': None}
    >>> found["last_measured"]
    {'val/knn_acc1': {'epoch': 1, 'value': 90.0}}
    """
    last: dict[str, Any] = {}
    earlier: dict[str, Any] = {}
    for name, values in columns.items():
        finite = [i for i, value in enumerate(values) if math.isfinite(value)]
        there = finite[-1:] == [len(values) - 1]
        last[name] = values[-1] if there else None
        if finite and not there:
            epoch = int(columns["epoch"][finite[-1]])
            earlier[name] = {"epoch": epoch, "value": values[finite[-1]]}
    return {"last": last, "last_measured": earlier}
