"""What runs left in TensorBoard's event files, and a local W&B server."""

from __future__ import annotations

from pathlib import Path


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    read = accumulator(folder)
    return {t: [(e.step, e.value) for e in read.Scalars(t)] for t in read.Tags()["scalars"]}


def accumulator(folder: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder))
    read.Reload()
    return read
