"""Read ``linear.json``, the linear evaluations of a run."""

from pathlib import Path
from typing import Any

from rdm_solo.runs import files
from rdm_solo.runs.files import LINEAR

# protocol: new augmentations in each epoch; cached: features extracted once.
KINDS = ("protocol", "cached")

Record = dict[str, Any]


def read(folder: Path) -> dict[str, list[Record]]:
    """Return the evaluations of each kind; {} if the file is missing."""
    try:
        records = files.read_object(folder, LINEAR)
    except FileNotFoundError:
        return {}
    for kind in records.keys() & {*KINDS}:
        if not isinstance(records[kind], list):
            raise files.Unreadable(folder / LINEAR, f"its entry {kind} is not a list")
    return records
