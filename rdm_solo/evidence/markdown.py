"""Tables in Markdown."""

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; head and rows have one length.

    >>> print(table(["row", "n"], [["BYOL", "10"]]))
    | row | n |
    |---|---|
    | BYOL | 10 |
    """
    return "\n".join([_line(head), "|" + "---|" * len(head), *map(_line, rows)])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
