"""What linear evaluations write: ``linear.json``, and scalars to the run's loggers."""

import json
import logging
from pathlib import Path

from rdm_solo import loggers
from rdm_solo.runs import linear_file
from rdm_solo.runs.files import LINEAR, write_whole
from rdm_solo.runs.linear_file import Record

log = logging.getLogger("rdm_solo")

# The names of the features= options in results, and the prefixes of their scalars.
VARIANTS = {"augmented": ("protocol", "linear/"), "cached": ("cached", "linear/cached_")}
# All else in a record is a setting; accuracies are averaged over seeds of the same settings.
OUTCOMES = ("top1", "top5", "seed", "curve", "seconds", "device", "versions")


def write(folder: Path, record: Record) -> list[Record]:
    """Add an evaluation to ``linear.json``; return the entries of the same settings.

    One of the same settings and seed is replaced.
    """
    variant, _ = VARIANTS[record["features"]]
    variants = linear_file.read(folder)
    entries = variants.get(variant, [])
    settings = record.keys() - {*OUTCOMES}
    alike = [i for i, e in enumerate(entries) if all(e.get(n) == record[n] for n in settings)]
    at = next((i for i in alike if entries[i]["seed"] == record["seed"]), len(entries))
    entries[at : at + 1] = [record]
    write_whole(folder / LINEAR, json.dumps({**variants, variant: entries}, indent=2) + "\n")
    return [entries[i] for i in sorted({*alike, at})]


def log_in_run(folder: Path, record: Record, step: int, online: bool) -> None:
    """Add the accuracies to the run's loggers."""
    _, prefix = VARIANTS[record["features"]]
    scalars = {f"{prefix}{name}": record[name] for name in ("top1", "top5")}
    if reached := loggers.append(folder, scalars, step, online):
        log.info(f"{', '.join(scalars)} logged to {' and '.join(reached)}")
