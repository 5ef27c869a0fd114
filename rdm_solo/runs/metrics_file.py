"""metrics.csv: one row an epoch, with the columns of :mod:`rdm_solo.runs.columns`.

Epochs count from 1. A run's folder says so by the number in ``format.json``; folders without one
were written by earlier versions, which counted from 0.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rdm_solo.runs.files import FORMAT, METRICS, SUMMARY, write_whole

__all__ = ["NUMBER", "begin", "folder_format", "read", "write"]

NUMBER = 2  # of the format that this version writes; 1 counted epochs from 0


def folder_format(folder: Path) -> int:
    """The number of the format that a run's folder has."""
    for name in (FORMAT, SUMMARY):
        try:
            number = json.loads((folder / name).read_text(encoding="utf-8"))["format"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if isinstance(number, int):
            if number > NUMBER:
                raise ValueError(
                    f"{folder} was written by a later version (format {number}, this version reads "
                    f"up to {NUMBER}): update rdm-solo."
                )
            return number
    return 1


def read(folder: Path) -> tuple[dict[str, np.ndarray], bool]:
    """The table's columns, and whether its last row was cut off; a missing value is NaN.

    A truncated number still parses, so a last row without a line end is left out.
    """
    names, rows, cut = _rows(folder)
    columns = {name: np.array([_number(row[name]) for row in rows]) for name in names}
    if "epoch" in columns and folder_format(folder) == 1:
        columns["epoch"] += 1
    return columns, cut


def begin(folder: Path, done: int, earlier: Path | None = None) -> list[dict[str, Any]]:
    """Prepare a folder for a run of which ``done`` epochs are over; the rows of these.

    They are the folder's own, which then keeps them alone, or those of an ``earlier`` run that
    goes on here.
    """
    source = earlier or folder
    own = source.resolve() == folder.resolve()
    rows: list[dict[str, Any]] = []
    if done and (source / METRICS).is_file():
        shift = folder_format(source) == 1
        rows = [{**row, "epoch": int(row["epoch"]) + shift} for row in _rows(source)[1]]
        rows = [row for row in rows if row["epoch"] <= done]
    if own and rows:
        write(folder, rows)
    else:
        (folder / METRICS).unlink(missing_ok=True)
    write_whole(folder / FORMAT, json.dumps({"format": NUMBER}) + "\n")
    return rows


def write(
    folder: Path, rows: Iterable[Mapping[str, Any]], columns: Iterable[str] | None = None
) -> None:
    """Write the whole table; what a row lacks stays empty."""
    rows = list(rows)
    columns = dict.fromkeys(columns or (name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(folder / METRICS, text.getvalue())


def _rows(folder: Path) -> tuple[list[str], list[dict[str, Any]], bool]:
    text = (folder / METRICS).read_text(encoding="utf-8")
    reader = csv.DictReader(io.StringIO(text))
    rows = list(reader)
    cut = bool(rows) and (not text.endswith("\n") or None in rows[-1].values())
    names = [name for name in reader.fieldnames or () if name]
    return names, rows[: len(rows) - cut], cut


def _number(text: str | None) -> float:
    try:
        return float(text or "nan")
    except ValueError:
        return math.nan
