"""TensorBoard and Weights & Biases loggers, in addition to every run's metrics.csv.

``loggers.json`` in a run's folder records its loggers, so that a resumed run continues its W&B run
and its TensorBoard log, and :func:`append` can add to them later.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rdm_solo.cli.instantiation import instantiate
from rdm_solo.runs import files
from rdm_solo.runs.files import LOGGERS, write_atomically

log = logging.getLogger("rdm_solo")

# Imported on use. Each key names the file in conf/logger/, the required package and the subfolder.
LOGGER_CLASSES = {
    "tensorboard": "rdm_solo.loggers.event_files.TensorBoard",
    "wandb": "rdm_solo.loggers.weights_biases.WeightsAndBiases",
}


@dataclass(frozen=True)
class RunInfo:
    """The data of a starting run that its loggers need."""

    folder: Path
    name: str  # method, filter, exponent and seed
    group: str  # data set, method, filter and exponent; equal for all seeds
    hyperparameters: Mapping[str, Any]  # for comparing runs; None if not applicable
    config: Mapping[str, Any]  # the whole config as plain values
    step: int = 0  # optimiser steps before this start


def open_all(choices: Mapping[str, Any], run: RunInfo) -> list[Any]:
    """Open the chosen loggers (``cfg.logger``), on the first process only."""
    if not choices:
        return []
    records = _read_records(run.folder)
    loggers = []
    for name, node in choices.items():
        files.inside(run.folder, name)  # refuses a link that leads out of the run's folder
        open_logger = instantiate(node, _partial_=True, _convert_="all")
        logger = open_logger(run=run, previous=records.get(name, {}))
        records[name] = logger.record
        loggers.append(logger)
    _write_records(run.folder, records)
    return loggers


def close_all(loggers: Sequence[Any]) -> None:
    """Close the loggers that :func:`open_all` opened."""
    for logger in loggers:
        logger.close()


def append(
    folder: Path, scalars: Mapping[str, float], step: int, online: bool = False
) -> list[str]:
    """Add scalars to every logger of a finished run and return the names of those loggers.

    ``step`` is the optimiser step of the scalars. They are uploaded only with ``online``, because
    an untrusted folder could name the project. A logger that fails logs a warning.
    """
    import hydra.utils

    names = []
    records = _read_records(folder)
    for name, path in LOGGER_CLASSES.items():
        if name not in records:
            continue
        record = records[name]
        try:
            files.inside(folder, name)
            record["appended"] = {**record.get("appended", {}), **scalars}
            options = dict(record)
            if not online:
                options["offline"] = True
            logger_class: Any = hydra.utils.get_class(path)
            logger = logger_class(folder, options)
            logger.log_metrics(scalars, step)
            logger.finalize("success")
            logger.close()
            names.append(name)
        except Exception as error:  # a service or its client can raise anything
            log.warning(f"warning: {', '.join(scalars)} could not be logged to {name}: {error}")
    if names:
        _write_records(folder, records)
    return names


def _read_records(folder: Path) -> dict[str, Any]:
    if not (folder / LOGGERS).is_file():
        return {}
    return files.read_object(folder, LOGGERS)


def _write_records(folder: Path, records: Mapping[str, Any]) -> None:
    write_atomically(folder / LOGGERS, json.dumps(records, indent=2) + "\n")
