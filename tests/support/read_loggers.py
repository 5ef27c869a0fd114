"""Read TensorBoard's event files and W&B's ``.wandb`` files."""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the steps and values of every scalar in TensorBoard's files."""
    read = accumulator(folder)
    return {t: [(e.step, e.value) for e in read.Scalars(t)] for t in read.Tags()["scalars"]}


def accumulator(folder: Path):
    """Return TensorBoard's own reader of a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder))
    read.Reload()
    return read


@dataclass
class WandbFile:
    """The content of a ``.wandb`` file, which each start or resumption of a run writes."""

    run: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    exit_code: int | None = None


def wandb_files(folder: Path) -> list[WandbFile]:
    """Read the ``.wandb`` files of a run's folder, one for each start."""
    return [_read(path) for path in sorted(folder.glob("wandb/*run-*/*.wandb"))]


def _read(path: Path) -> WandbFile:
    from wandb.proto.wandb_internal_pb2 import Record

    file = WandbFile()
    for content in _records(path.read_bytes()):
        record = Record.FromString(content)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            file.run = {n: getattr(record.run, n) for n in ("run_id", "project", "display_name")}
            file.run["group"] = record.run.run_group
            file.config |= _items(record.run.config.update)
        elif kind == "config":
            file.config |= _items(record.config.update)
        elif kind == "history":
            file.rows.append(_items(record.history.item))
        elif kind == "summary":
            file.summary |= _items(record.summary.update)
        elif kind == "exit":
            file.exit_code = record.exit.exit_code
    return file


def _items(items: Any) -> dict[str, Any]:
    return {i.key or ".".join(i.nested_key): json.loads(i.value_json) for i in items}


def _records(data: bytes) -> Iterator[bytes]:
    """Split LevelDB's log format: blocks of 32 KiB, chunks of checksum, length and kind."""
    at, record = 7, b""
    while at + 7 <= len(data):
        left = 2**15 - at % 2**15
        if left < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or its last chunk
            yield record
            record = b""
