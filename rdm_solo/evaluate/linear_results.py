"""What linear evaluations write: ``linear.json``, ``linear.csv``, the run's summary and loggers."""

import contextlib
import csv
import io
import json
import logging
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rdm_solo import loggers
from rdm_solo.messages import UserError
from rdm_solo.runs import linear_file, reading
from rdm_solo.runs.files import LINEAR, LINEAR_TABLE, SUMMARY, write_table, write_whole
from rdm_solo.runs.linear_file import Record

if TYPE_CHECKING:
    from rdm_solo.evaluate.probe import EpochRow

log = logging.getLogger("rdm_solo")

# What the features= options are called in results, and what their scalars begin with.
VARIANTS = {"augmented": ("protocol", "linear/"), "cached": ("cached", "linear/cached_")}
COLUMNS = ("features", "entry", "seed", "epoch", "lr", "loss", "top1", "top5")
# What a repetition under another seed has of its own; all else in a record is its settings.
OUTCOMES = ("top1", "top5", "seed", "seconds", "device", "versions")


def write(folder: Path, record: Record, curve: "list[EpochRow]") -> list[Record]:
    """``linear.json`` and ``linear.csv``, where every evaluation keeps its entry.

    One of the same settings and seed is replaced. Returns the entries of the same settings.
    """
    variant, _ = VARIANTS[record["features"]]
    known, rows = earlier(folder)
    entries = known.get(variant, [])
    alike = [i for i, entry in enumerate(entries) if _settings(entry) == _settings(record)]
    at = next((i for i in alike if entries[i]["seed"] == record["seed"]), len(entries))
    entries[at : at + 1] = [record]
    write_whole(folder / LINEAR, json.dumps({**known, variant: entries}, indent=2) + "\n")
    own = {"features": record["features"], "entry": str(at)}  # whose epochs are written anew
    rows = [row for row in rows if not own.items() <= row.items()]
    rows += [{**own, "seed": record["seed"], **row._asdict()} for row in curve]
    write_table(folder / LINEAR_TABLE, COLUMNS, rows)
    return [entries[i] for i in sorted({*alike, at})]


def earlier(folder: Path) -> tuple[dict[str, list[Record]], list[dict[str, Any]]]:
    """The evaluations that the folder has, and their epochs; ValueError where a file is broken."""
    known = linear_file.read(folder)
    rows: list[dict[str, Any]] = []
    with reading.named(folder / LINEAR_TABLE), contextlib.suppress(FileNotFoundError):
        text = reading.read_text(folder, LINEAR_TABLE, reading.MOST_TABLE)
        rows = list(csv.DictReader(io.StringIO(text)))
        if not all(row.keys() <= set(COLUMNS) for row in rows):
            raise UserError("it is no table of evaluations: it has other columns")
        # Evaluations by earlier versions, whose epochs begin with 0.
        old = {(row["features"], row["entry"]) for row in rows if row["epoch"] == "0"}
        for row in rows:
            row["epoch"] = int(row["epoch"]) + ((row["features"], row["entry"]) in old)
    return known, rows


def _settings(record: Record) -> Record:
    """What two evaluations must share for their accuracies to be averaged, as JSON has it."""
    plain = json.loads(json.dumps(record))
    return {name: value for name, value in plain.items() if name not in OUTCOMES}


def _moments(alike: list[Record], name: str) -> dict[str, float]:
    """Mean and standard deviation of several seeds' accuracies."""
    values = [record[name] for record in alike]
    return {"mean": statistics.mean(values), "sd": statistics.stdev(values)}


def record_in_run(
    folder: Path, record: Record, alike: list[Record], step: int, online: bool
) -> None:
    """Put the accuracies into the run's ``summary.json`` and its loggers."""
    variant, prefix = VARIANTS[record["features"]]
    accuracies = {name: record[name] for name in ("top1", "top5")}
    path = folder / SUMMARY
    if path.exists() or path.is_symlink():
        summary = reading.read_object(folder, SUMMARY)
        entry: Record = {**accuracies, "seed": record["seed"]}
        if len(alike) > 1:
            entry["seeds"] = {"n": len(alike), **{n: _moments(alike, n) for n in accuracies}}
        others = summary.get("linear")
        summary["linear"] = {**(others if isinstance(others, dict) else {}), variant: entry}
        write_whole(path, json.dumps(summary, indent=2) + "\n")
    scalars = {f"{prefix}{name}": value for name, value in accuracies.items()}
    if reached := loggers.append(folder, scalars, step, online):
        log.info(f"{', '.join(scalars)} went to {' and '.join(reached)}")


def announce(record: Record) -> None:
    """Say the accuracies and what they were measured with, before anything is written."""
    protocol = record["protocol"]
    log.info(
        f"top-1 {record['top1']:.2f} %, top-{record['top5_counts']} {record['top5']:.2f} % on "
        f"{record['dataset']} ({record['features']} features, {protocol['epochs']} epochs, learning"
        f" rate {protocol['lr']:g} x {protocol['batch_size']}/256 = {record['lr']:g}, seed "
        f"{record['seed']})"
    )
    if record["assumed"]:
        log.info(f"assumed of the stem: {record['assumed']}")


def conclude(record: Record, alike: list[Record], out: Path) -> None:
    """Say what the seeds give together, and where it lies."""
    if len(alike) > 1:
        top1 = _moments(alike, "top1")
        log.info(f"top-1 {top1['mean']:.2f} ± {top1['sd']:.2f} % over {len(alike)} seeds")
    log.info(f"{record['seconds']:.0f} s; linear.json and linear.csv are in {out}")
