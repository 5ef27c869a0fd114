"""What linear evaluations write: ``linear.json``, the run's summary and loggers."""

import contextlib
import json
import logging
import statistics
from pathlib import Path

from rdm_solo import loggers
from rdm_solo.runs import files, linear_file
from rdm_solo.runs.files import LINEAR, SUMMARY, write_whole
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


def over_seeds(alike: list[Record]) -> Record:
    """Return n, and the accuracies' means and standard deviations."""
    moments: Record = {"n": len(alike)}
    for name in ("top1", "top5"):
        values = [record[name] for record in alike]
        moments[name] = {"mean": statistics.mean(values), "sd": statistics.stdev(values)}
    return moments


def record_in_run(
    folder: Path, alike: list[Record], record: Record, step: int, online: bool
) -> None:
    """Put the accuracies into the run's ``summary.json`` and its loggers."""
    variant, prefix = VARIANTS[record["features"]]
    accuracies = {name: record[name] for name in ("top1", "top5")}
    with contextlib.suppress(FileNotFoundError):
        summary = files.read_object(folder, SUMMARY)
        entry: Record = {**accuracies, "seed": record["seed"]}
        if len(alike) > 1:
            entry["seeds"] = over_seeds(alike)
        summary["linear"] = {**(summary.get("linear") or {}), variant: entry}
        write_whole(folder / SUMMARY, json.dumps(summary, indent=2) + "\n")
    scalars = {f"{prefix}{name}": value for name, value in accuracies.items()}
    if reached := loggers.append(folder, scalars, step, online):
        log.info(f"{', '.join(scalars)} logged to {' and '.join(reached)}")
