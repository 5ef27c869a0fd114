"""The linear evaluations in linear.json of a run's folder."""

from pathlib import Path
from typing import Any

from rdm_solo.messages import finite
from rdm_solo.runs import files
from rdm_solo.runs.files import LINEAR

# Freshly augmented images in each epoch, or features extracted once.
KINDS = ("protocol", "cached")

Record = dict[str, Any]


def read(folder: Path) -> dict[str, list[Record]]:
    """Return the evaluations of each kind; empty without the file."""
    try:
        records = files.read_object(folder, LINEAR)
    except FileNotFoundError:
        return {}
    for kind in records.keys() & {*KINDS}:
        entries = records[kind]
        if not isinstance(entries, list) or not all(map(_is_record, entries)):
            raise files.Unreadable(folder / LINEAR, f"its {kind} are no linear evaluations")
    return records


def _is_record(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and "seed" in entry
        and all(0 <= (finite(entry.get(name)) or 0) <= 100 for name in ("top1", "top5"))
    )
