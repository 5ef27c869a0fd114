"""The linear evaluations in linear.json of a run's folder."""

import contextlib
from pathlib import Path
from typing import Any

from rdm_solo.runs import reading
from rdm_solo.runs.files import LINEAR

# The kinds of evaluation there: of freshly augmented images, and of features extracted once.
KINDS = ("protocol", "cached")

Record = dict[str, Any]


def read(folder: Path) -> dict[str, list[Record]]:
    """The evaluations of each kind; none without the file, :class:`~reading.Unreadable` where it is
    torn or holds something else."""
    known: dict[str, Any] = {}
    with contextlib.suppress(FileNotFoundError):
        known = reading.read_object(folder, LINEAR)
    for kind in known.keys() & {*KINDS}:
        entries = known[kind]
        entries = [entries] if isinstance(entries, dict) else entries  # as it was written once
        if not isinstance(entries, list) or not all(map(_is_record, entries)):
            raise reading.Unreadable(folder / LINEAR, f"its {kind} are no linear evaluations")
        known[kind] = entries
    return known


def _is_record(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and "seed" in entry
        and all(_is_percentage(entry.get(name)) for name in ("top1", "top5"))
    )


def _is_percentage(value: Any) -> bool:
    return isinstance(value, (int, float)) and 0 <= value <= 100
