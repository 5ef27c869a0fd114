"""Tables in Markdown."""

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; head and rows have the same length.

    >>> print(table(["row", "n"], [["BYOL", "10"]]))
    | row | n |
    |---|---|
    | BYOL | 10 |
    """
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])
