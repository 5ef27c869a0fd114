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
        return files.read_object(folder, LINEAR)
    except FileNotFoundError:
        return {}
