"""What linear evaluations write: ``linear.json``, ``linear.csv``, the run's summary and loggers."""

import contextlib
import csv
import io
import json
import logging
import statistics
from pathlib import Path
from typing import Any

from rdm_solo import loggers
from rdm_solo.evaluate.probe import EpochRow
from rdm_solo.runs import files, linear_file
from rdm_solo.runs.files import LINEAR, LINEAR_TABLE, SUMMARY, write_table, write_whole
from rdm_solo.runs.linear_file import Record

log = logging.getLogger("rdm_solo")

# The names of the features= options in results, and the prefixes of their scalars.
VARIANTS = {"augmented": ("protocol", "linear/"), "cached": ("cached", "linear/cached_")}
COLUMNS = ("features", "entry", "seed", "epoch", "lr", "loss", "top1", "top5")
# All else in a record is a setting; accuracies are averaged over seeds of the same settings.
OUTCOMES = ("top1", "top5", "seed", "seconds", "device", "versions")


def write(folder: Path, record: Record, curve: list[EpochRow]) -> list[Record]:
    """Add an evaluation to ``linear.json`` and ``linear.csv``.

    One of the same settings and seed is replaced. Returns the entries of the same settings.
    """
    variant, _ = VARIANTS[record["features"]]
    variants, rows = earlier(folder)
    entries = variants.get(variant, [])
    alike = [i for i, entry in enumerate(entries) if _settings(entry) == _settings(record)]
    at = next((i for i in alike if entries[i]["seed"] == record["seed"]), len(entries))
    entries[at : at + 1] = [record]
    write_whole(folder / LINEAR, json.dumps({**variants, variant: entries}, indent=2) + "\n")
    entry = {"features": record["features"], "entry": str(at)}
    rows = [row for row in rows if not entry.items() <= row.items()]
    rows += [{**entry, "seed": record["seed"], **row._asdict()} for row in curve]
    write_table(folder / LINEAR_TABLE, COLUMNS, rows)
    return [entries[i] for i in sorted({*alike, at})]


def earlier(folder: Path) -> tuple[dict[str, list[Record]], list[dict[str, Any]]]:
    """Return the folder's evaluations by variant, and the rows of their epochs."""
    rows: list[dict[str, Any]] = []
    with contextlib.suppress(FileNotFoundError):
        rows = list(csv.DictReader(io.StringIO(files.read_text(folder, LINEAR_TABLE))))
    return linear_file.read(folder), rows


def _settings(record: Record) -> Record:
    """Return what two evaluations must share for their accuracies to be averaged."""
    return {name: value for name, value in record.items() if name not in OUTCOMES}


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


def announce(record: Record) -> None:
    """Log the accuracies and what they were measured with, before anything is written."""
    protocol = record["protocol"]
    log.info(
        f"top-1 {record['top1']:.2f} %, top-{record['top5_counts']} {record['top5']:.2f} % on "
        f"{record['dataset']} ({record['features']} features, {protocol['epochs']} epochs, learning"
        f" rate {protocol['lr']:g} x {protocol['batch_size']}/256 = {record['lr']:g}, seed "
        f"{record['seed']})"
    )
