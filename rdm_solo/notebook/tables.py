"""Tables as a notebook shows them: pandas' where it is installed, else columns that print well."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

ROWS, WIDTH = 20, 100  # that a table prints: rows, and letters of a line


def table(columns: Mapping[str, Any]) -> Any:
    """The columns as a ``pandas.DataFrame``, or as a :class:`Table` where pandas is missing."""
    try:
        import pandas  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError:
        return Table(columns)
    return pandas.DataFrame(dict(columns))


def of_rows(rows: Iterable[Mapping[str, Any]]) -> Any:
    """The same of rows; None where a row lacks a column that another has."""
    rows = list(rows)
    names = dict.fromkeys(name for row in rows for name in row)
    return table({name: [row.get(name) for row in rows] for name in names})


class Table(dict[str, np.ndarray]):
    """A dict of columns, each a numpy array, that prints as a table.

    >>> Table({"setting": ["SimSiam", "BYOL"], "erank": [10.25, float("nan")]})
    setting  erank
    SimSiam  10.25
    BYOL       nan
    """

    def __init__(self, columns: Mapping[str, Any]) -> None:
        super().__init__({name: _array(values) for name, values in columns.items()})

    def rows(self) -> list[dict[str, Any]]:
        """A dict for each row.

        >>> Table({"p": [-0.5], "n": [3]}).rows()
        [{'p': -0.5, 'n': 3}]
        """
        columns = [values.tolist() for values in self.values()]
        return [dict(zip(self, row)) for row in zip(*columns)]

    def __repr__(self) -> str:
        length = max(map(len, self.values()), default=0)
        ends = length > ROWS
        picked = [*range(ROWS // 2), *range(length - ROWS // 2, length)] if ends else range(length)
        shown: list[list[str]] = []
        left = list(self)
        while left and (not shown or _wide([*shown, _cells(left[0], self[left[0]], picked)])):
            name = left.pop(0)
            shown.append(_cells(name, self[name], picked))
        lines = [
            "  ".join(_placed(column, i, self[name]) for name, column in zip(self, shown)).rstrip()
            for i in range(len(picked) + 1)
        ]
        if ends:
            lines.insert(1 + ROWS // 2, f"... {length - ROWS} more rows")
        if left:
            lines.append(f"and {len(left)} more columns: {', '.join(left)}")
        return "\n".join(lines) if length else "(no rows)"


def _array(values: Any) -> np.ndarray:
    """Numbers as such, and everything else as it is: lists of unequal lengths make no array."""
    values = list(values)
    if all(isinstance(value, (int, float, np.number)) for value in values):
        return np.array(values)
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found


def _cells(name: str, values: np.ndarray, picked: Iterable[int]) -> list[str]:
    return [name, *(_text(values[row]) for row in picked)]


def _text(value: Any) -> str:
    if isinstance(value, (float, np.floating)):
        return f"{value:.4g}"
    return "" if value is None else str(value)


def _wide(columns: list[list[str]]) -> bool:
    """Whether the columns have room in a line."""
    return sum(max(map(len, column)) + 2 for column in columns) - 2 <= WIDTH


def _placed(column: list[str], row: int, values: np.ndarray) -> str:
    """A cell among those of its column: numbers at the right."""
    width = max(map(len, column))
    return column[row].ljust(width) if values.dtype == object else column[row].rjust(width)
