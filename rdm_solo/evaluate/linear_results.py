"""What linear evaluations write: ``linear.json``, ``linear.csv``, the run's summary and loggers."""

from __future__ import annotations

import csv
import io
import json
import logging
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rdm_solo.runs.files import LINEAR, LINEAR_TABLE, SUMMARY, write_whole

if TYPE_CHECKING:
    from rdm_solo.evaluate.probe import EpochRow, ProbeResult, Protocol

__all__ = ["VARIANTS", "announce", "record_in_run", "write"]

log = logging.getLogger("rdm_solo")

# What the features= options are called in results, and what their scalars begin with.
VARIANTS = {"augmented": ("protocol", "linear/"), "cached": ("cached", "linear/cached_")}
COLUMNS = ("features", "entry", "seed", "epoch", "lr", "loss", "top1", "top5")
# What a repetition under another seed has of its own; all else in a record is its settings.
OUTCOMES = ("top1", "top5", "seed", "seconds", "device", "versions")


def write(
    folder: Path, features: str, record: dict[str, Any], curve: list[EpochRow]
) -> list[dict[str, Any]]:
    """``linear.json`` and ``linear.csv``, where every evaluation keeps its entry.

    One of the same settings and seed is replaced. Returns the entries of the same settings.
    """
    variant, _ = VARIANTS[features]
    closing = folder / LINEAR
    known = json.loads(closing.read_text()) if closing.is_file() else {}
    entries: list[dict[str, Any]] = known.get(variant, [])
    if isinstance(entries, dict):  # a file of one entry, as it was written once
        entries = [entries]
    settings = _settings(record)
    alike = [i for i, entry in enumerate(entries) if _settings(entry) == settings]
    at = next((i for i in alike if entries[i]["seed"] == record["seed"]), len(entries))
    entries[at : at + 1] = [record]
    write_whole(closing, json.dumps({**known, variant: entries}, indent=2) + "\n")

    table = folder / LINEAR_TABLE
    rows: list[dict[str, Any]] = []
    if table.is_file():
        with open(table, newline="") as file:
            rows = list(csv.DictReader(file))
        _count_from_1(rows)
    key = {"features": features, "entry": str(at)}
    rows = [row for row in rows if any(row[name] != value for name, value in key.items())]
    rows += [{**key, "seed": record["seed"], **asdict(row)} for row in curve]
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    writer.writerows(rows)
    write_whole(table, text.getvalue())
    return [entries[i] for i in sorted({*alike, at})]


def _count_from_1(rows: list[dict[str, Any]]) -> None:
    """Shift the epochs of evaluations by earlier versions, which begin with epoch 0."""

    def evaluation(row: dict[str, Any]) -> tuple[str, str]:
        return row["features"], row["entry"]

    old = {evaluation(row) for row in rows if row["epoch"] == "0"}
    for row in rows:
        if evaluation(row) in old:
            row["epoch"] = str(int(row["epoch"]) + 1)


def _settings(record: dict[str, Any]) -> dict[str, Any]:
    """What two evaluations must share for their accuracies to be averaged, as JSON has it."""
    plain = json.loads(json.dumps(record))
    return {name: value for name, value in plain.items() if name not in OUTCOMES}


def _moments(alike: list[dict[str, Any]], name: str) -> dict[str, float]:
    """Mean and standard deviation of several seeds' accuracies."""
    values = [record[name] for record in alike]
    return {"mean": statistics.mean(values), "sd": statistics.stdev(values)}


def record_in_run(
    folder: Path, features: str, record: dict[str, Any], alike: list[dict[str, Any]], step: int
) -> None:
    """Put the accuracies into the run's ``summary.json`` and its loggers."""
    from rdm_solo import loggers

    variant, prefix = VARIANTS[features]
    accuracies = {name: record[name] for name in ("top1", "top5")}
    path = folder / SUMMARY
    if path.is_file():
        summary = json.loads(path.read_text())
        entry: dict[str, Any] = {**accuracies, "seed": record["seed"]}
        if len(alike) > 1:
            entry["seeds"] = {"n": len(alike), **{n: _moments(alike, n) for n in accuracies}}
        summary.setdefault("linear", {})[variant] = entry
        write_whole(path, json.dumps(summary, indent=2) + "\n")
    scalars = {f"{prefix}{name}": value for name, value in accuracies.items()}
    reached = loggers.append(folder, scalars, step)
    if reached:
        log.info(f"{', '.join(scalars)} went to {' and '.join(reached)}")


def announce(
    record: dict[str, Any],
    protocol: Protocol,
    result: ProbeResult,
    alike: list[dict[str, Any]],
    out: Path,
) -> None:
    """Say the accuracies, what they were measured with and where they lie."""
    log.info(
        f"top-1 {result.top1:.2f} %, top-{result.k} {result.top5:.2f} % on {record['dataset']} "
        f"({record['features']} features, {protocol.epochs} epochs, learning rate {protocol.lr:g} "
        f"x {protocol.batch_size}/256 = {protocol.effective_lr:g}, seed {record['seed']})"
    )
    if record["assumed"]:
        log.info(f"assumed of the stem: {record['assumed']}")
    if len(alike) > 1:
        top1 = _moments(alike, "top1")
        log.info(f"top-1 {top1['mean']:.2f} ± {top1['sd']:.2f} % over {len(alike)} seeds")
    log.info(f"{record['seconds']:.0f} s; linear.json and linear.csv are in {out}")
