"""Read TensorBoard's event files and W&B's ``.wandb`` files."""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


def events(folder: Path) -> dict[str, list]:
    """Return the steps and values of every scalar in TensorBoard's files."""
    reader = accumulator(folder)
    values = {}
    for tag in reader.Tags()["scalars"]:
        values[tag] = [(event.step, event.value) for event in reader.Scalars(tag)]
    return values


def accumulator(folder: Path):
    """Return TensorBoard's own reader of a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder))
    reader.Reload()
    return reader


@dataclass
class WandbFile:
    """The content of a ``.wandb`` file, which each start or resumption of a run writes."""

    run: dict = field(default_factory=dict)
    config: dict = field(default_factory=dict)
    rows: list[dict] = field(default_factory=list)
    summary: dict = field(default_factory=dict)
    alerts: list[tuple[str, str]] = field(default_factory=list)  # level and title
    artifacts: list[str] = field(default_factory=list)
    x_axes: dict[str, str] = field(default_factory=dict)  # of metrics
    exit_code: int | None = None


def wandb_files(folder: Path) -> list[WandbFile]:
    """Read the ``.wandb`` files of a run's folder, one for each start."""
    import wandb

    # A run's finish() returns before W&B's service (0.31) has written the last records. The service
    # closes all files before it ends.
    wandb.teardown()
    return [_wandb_file(path) for path in sorted(folder.glob("wandb/*run-*/*.wandb"))]


def _wandb_file(path: Path) -> WandbFile:
    from wandb.proto.wandb_internal_pb2 import Record

    file = WandbFile()
    for content in _records(path.read_bytes()):
        record = Record.FromString(content)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            file.run = {
                "run_id": record.run.run_id,
                "project": record.run.project,
                "display_name": record.run.display_name,
                "group": record.run.run_group,
                "job_type": record.run.job_type,
            }
            file.config |= _items(record.run.config.update)
        elif kind == "config":
            file.config |= _items(record.config.update)
        elif kind == "history":
            file.rows.append(_items(record.history.item))
        elif kind == "summary":
            file.summary |= _items(record.summary.update)
        elif kind == "alert":
            file.alerts.append((record.alert.level, record.alert.title))
        elif kind == "artifact":
            file.artifacts.append(record.artifact.name)
        elif kind == "metric":
            file.x_axes[record.metric.name] = record.metric.step_metric
        elif kind == "exit":
            file.exit_code = record.exit.exit_code
    return file


def _items(items) -> dict:
    values = {}
    for item in items:
        name = item.key or ".".join(item.nested_key)
        values[name] = json.loads(item.value_json)
    return values


def _records(data: bytes) -> Iterator[bytes]:
    """Split LevelDB's log format: blocks of 32 KiB, chunks of checksum, length and kind."""
    offset, record = 7, b""
    while offset + 7 <= len(data):
        left = 2**15 - offset % 2**15
        if left < 7:  # too short for the head of a chunk
            offset += left
            continue
        length, kind = struct.unpack_from("<HB", data, offset + 4)
        offset += 7
        record += data[offset : offset + length]
        offset += length
        if kind in (1, 4):  # a whole record, or its last chunk
            yield record
            record = b""
