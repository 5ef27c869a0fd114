"""Write linear evaluations to ``linear.json`` and to the run's loggers."""

import json
import logging
from pathlib import Path
from typing import Any

from rdm_solo import loggers
from rdm_solo.runs import files
from rdm_solo.runs.files import LINEAR, write_atomically

log = logging.getLogger("rdm_solo")

Record = dict[str, Any]

# For each value of features=: its key in linear.json and the prefix of its scalars.
VARIANTS = {"augmented": ("protocol", "linear/"), "cached": ("cached", "linear/cached_")}
# All other keys of a record are settings. Accuracies are averaged over seeds of equal settings.
OUTCOMES = ("top1", "top5", "seed", "curve", "seconds", "device", "versions")


def write(folder: Path, record: Record) -> list[Record]:
    """Add a record to ``linear.json``; return all records with the same settings.

    It replaces a record with the same settings and seed.
    """
    kind, _ = VARIANTS[record["features"]]
    records = files.read_object(folder, LINEAR)
    settings = _settings(record)
    entries = []
    for entry in records.get(kind, []):
        is_replaced = entry["seed"] == record["seed"] and _settings(entry) == settings
        if not is_replaced:
            entries.append(entry)
    entries.append(record)
    records[kind] = entries
    text = json.dumps(records, indent=2)
    write_atomically(folder / LINEAR, text + "\n")
    return [entry for entry in entries if _settings(entry) == settings]


def _settings(record: Record) -> Record:
    return {name: value for name, value in record.items() if name not in OUTCOMES}


def log_to_run(folder: Path, record: Record, step: int, online: bool) -> None:
    """Log the accuracies to the run's loggers."""
    _, prefix = VARIANTS[record["features"]]
    scalars = {
        f"{prefix}top1": record["top1"],
        f"{prefix}top5": record["top5"],
    }
    logger_names = loggers.append(folder, scalars, step, online)
    if logger_names:
        log.info(f"{', '.join(scalars)} logged to {' and '.join(logger_names)}")
