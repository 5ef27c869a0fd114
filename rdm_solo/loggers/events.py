"""TensorBoard's event files of a run: pictures, histograms, hyperparameters, the run it resumes.

Scalars are written by Lightning's own logger. The hyperparameters appear in TensorBoard's HPARAMS
tab from the first epoch on; it shows the last value of each metric.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rdm_solo.lightning import pl

__all__ = ["append", "carry_over", "close", "introduce", "logger", "mine", "picture", "spectra"]

FOLDER = "tensorboard"

# One list for all runs: TensorBoard takes the first run's for a whole sweep.
HYPERPARAMETERS: dict[str, type] = {
    "method": str,
    "filter": str,
    "p": float,
    "p_schedule": str,
    "dataset": str,
    "backbone": str,
    "batch": int,
    "lr": float,
    "weight_decay": float,
    "epochs": int,
    "seed": int,
}
METRICS = [
    "val/acc1",
    "val/knn_acc1",
    "linear/top1",
    "erank/online",
    "erank/target",
    "erank/gap",
    "feature/variance",
    "train/loss",
]


def logger(folder: Path, **_: Any) -> tuple[Any, dict[str, Any]]:
    """Lightning's logger for event files in the run's folder, and what finds them again."""
    made = pl.loggers.TensorBoardLogger(folder, name=FOLDER, version="", default_hp_metric=False)
    return made, {"folder": FOLDER}


def mine(logger: Any) -> bool:
    return isinstance(logger, pl.loggers.TensorBoardLogger)


def introduce(logger: Any, facts: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Write the hyperparameters of :data:`HYPERPARAMETERS`; the whole config goes to a file."""
    from torch.utils.tensorboard.summary import hparams

    names = {name: kind() for name, kind in HYPERPARAMETERS.items()}
    experiment, _, _ = hparams(names, dict.fromkeys(METRICS, 0.0))
    given = {name: facts[name] for name in names if facts.get(name) is not None}
    _, start, _ = hparams(given, {})
    _write(Path(logger.log_dir), [_event(experiment), _event(start)])
    logger.log_hyperparams(dict(config))


def close(logger: Any, failed: bool) -> None:
    """Say in the HPARAMS tab how the run has ended; Lightning has closed the file before."""
    from tensorboard.plugins.hparams.api_pb2 import Status
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
    from torch.utils.tensorboard.summary import hparams

    end = hparams({}, {})[2]
    data = end.value[0].metadata.plugin_data
    told = HParamsPluginData.FromString(data.content)
    told.session_end_info.status = Status.STATUS_FAILURE if failed else Status.STATUS_SUCCESS
    told.session_end_info.end_time_secs = time.time()
    data.content = told.SerializeToString()
    logger.finalize("failed" if failed else "success")
    _write(Path(logger.log_dir), [_event(end)])


def picture(logger: Any, name: str, image: np.ndarray, step: int) -> None:
    """A picture of shape ``(height, width, 3)``, bytes."""
    logger.experiment.add_image(name, image, step, dataformats="HWC")


def spectra(logger: Any, history: Mapping[int, Mapping[str, np.ndarray]], step: int) -> None:
    """Histograms of the last epoch's eigenvalues, as powers of ten."""
    for name, values in history[max(history)].items():
        if name.startswith("lam_"):
            powers = np.log10(values[values > 0])
            if len(powers):
                key = f"spectra/log10_{name.removeprefix('lam_')}"
                logger.experiment.add_histogram(key, powers, step)


def append(
    folder: Path, record: Mapping[str, Any], scalars: Mapping[str, float], step: int
) -> None:
    """Scalars in a further file of the folder; TensorBoard reads all of them as one run."""
    from torch.utils.tensorboard.summary import scalar

    events = [_event(scalar(name, value), step) for name, value in scalars.items()]
    _write(folder / record["folder"], events)


def carry_over(earlier: Path, folder: Path, step: int) -> None:
    """Copy what an earlier run has written before that step, so that both are one run.

    Its hyperparameters and its end stay behind: TensorBoard would show the first it meets.
    """
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    kept = []
    for path in sorted((earlier / FOLDER).glob("events.out.tfevents.*")):
        for event in LegacyEventFileLoader(str(path)).Load():
            tags = [value.tag for value in event.summary.value]
            if event.step < step and tags and not any(t.startswith("_hparams_/") for t in tags):
                kept.append(event)
    if kept:
        _write(folder / FOLDER, kept)


def _event(summary: Any, step: int = 0) -> Any:
    from tensorboard.compat.proto.event_pb2 import Event

    return Event(wall_time=time.time(), step=step, summary=summary)


def _write(folder: Path, events: Iterable[Any]) -> None:
    """A file of its own, whose name sorts it behind those that are there."""
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder))
    for event in events:
        writer.add_event(event)
    writer.close()
