"""A study's table: a CSV file with one row per run. The page is written from it."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from rdm_solo.runs.files import write_atomically

Row = Mapping[str, str]


def read(path: Path) -> list[Row]:
    """Return the rows of the table, none if there is no file."""
    if not path.exists():
        return []
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))


def add(path: Path, head: Sequence[str], row: Row) -> None:
    """Add a row; ``head`` names the columns of a new table. The file is replaced atomically."""
    rows = read(path)
    head = list(rows[0]) if rows else head
    text = io.StringIO()
    writer = csv.DictWriter(text, head, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows([*rows, row])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.getvalue())


def joined(values: Sequence[float]) -> str:
    """Return a cell with one number per epoch, "-" where nothing was measured.

    >>> joined([10.5, math.nan, 20])
    '10.5 - 20'
    """
    return " ".join("-" if math.isnan(value) else f"{value:.4g}" for value in values)


def series(cell: str) -> list[float]:
    """Return the numbers of a cell that has one per epoch.

    >>> series("10.5 - 20")
    [10.5, nan, 20.0]
    """
    return [math.nan if word == "-" else float(word) for word in cell.split()]
