"""Write linear evaluations to ``linear.json`` and to the run's loggers."""

import json
import logging
from pathlib import Path

from rdm_solo import loggers
from rdm_solo.runs import linear_file
from rdm_solo.runs.files import LINEAR, write_atomically
from rdm_solo.runs.linear_file import Record

log = logging.getLogger("rdm_solo")

# For each value of features=: its key in linear.json and the prefix of its scalars.
VARIANTS = {"augmented": ("protocol", "linear/"), "cached": ("cached", "linear/cached_")}
# All other keys of a record are settings. Accuracies are averaged over seeds of equal settings.
OUTCOMES = ("top1", "top5", "seed", "curve", "seconds", "device", "versions")


def write(folder: Path, record: Record) -> list[Record]:
    """Add a record to ``linear.json``; return all records with the same settings.

    A record with the same settings and seed is replaced.
    """
    variant, _ = VARIANTS[record["features"]]
    variants = linear_file.read(folder)
    entries = variants.get(variant, [])
    settings = record.keys() - {*OUTCOMES}
    same = [i for i, e in enumerate(entries) if all(e.get(n) == record[n] for n in settings)]
    position = next((i for i in same if entries[i]["seed"] == record["seed"]), len(entries))
    entries[position : position + 1] = [record]
    write_atomically(folder / LINEAR, json.dumps({**variants, variant: entries}, indent=2) + "\n")
    return [entries[i] for i in sorted({*same, position})]


def log_to_run(folder: Path, record: Record, step: int, online: bool) -> None:
    """Log the accuracies to the run's loggers."""
    _, prefix = VARIANTS[record["features"]]
    scalars = {f"{prefix}{name}": record[name] for name in ("top1", "top5")}
    if logger_names := loggers.append(folder, scalars, step, online):
        log.info(f"{', '.join(scalars)} logged to {' and '.join(logger_names)}")
