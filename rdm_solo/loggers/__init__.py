"""TensorBoard and Weights & Biases, beside the metrics.csv of every run.

``loggers.json`` in a run's folder records its loggers, so that every start of the run continues
the same W&B run and the same TensorBoard log, and :func:`append` can add to them later.
"""

import importlib.util
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rdm_solo.cli.terminal import instantiate
from rdm_solo.messages import UserError
from rdm_solo.runs import files
from rdm_solo.runs.files import LOGGERS, write_atomically

log = logging.getLogger("rdm_solo")

# By their names in conf/logger/, which are also those of the packages that they need and of their
# folders. The classes are imported when they are used.
KINDS = {
    "tensorboard": "rdm_solo.loggers.event_files.TensorBoard",
    "wandb": "rdm_solo.loggers.weights_biases.WeightsAndBiases",
}


@dataclass(frozen=True)
class RunInfo:
    """What a logger needs to know about the run that starts."""

    folder: Path
    name: str  # method, filter, exponent and seed
    group: str  # data set, method, filter and exponent, which all seeds share
    hyperparameters: Mapping[str, Any]  # by which runs are compared; None where a run has none
    config: Mapping[str, Any]  # the whole config as plain values
    sweep: str | None = None  # the name of the sweep's folder
    step: int = 0  # optimiser steps before this start


def check_packages(names: Iterable[str]) -> None:
    """Refuse a logger whose package is not installed."""
    for name in KINDS.keys() & names:
        if importlib.util.find_spec(name) is None:
            raise UserError(f"logger={name} needs the package {name}: pip install {name}")


def open_all(choices: Mapping[str, Any], run: RunInfo) -> list[Any]:
    """Open the chosen loggers (``cfg.logger``), on the first process only."""
    records = _read_records(run.folder) if choices else {}
    loggers = []
    for name, node in choices.items():
        files.inside(run.folder, name)
        open_logger = instantiate(node, _partial_=True, _convert_="all")
        loggers.append(open_logger(run=run, earlier=records.get(name, {})))
        records[name] = loggers[-1].record
    if loggers:
        _write_records(run.folder, records)
    return loggers


def append(
    folder: Path, scalars: Mapping[str, float], step: int, online: bool = False
) -> list[str]:
    """Add scalars to every logger of a finished run and return the names of those loggers.

    ``step`` is the optimiser step that the scalars belong to. They are sent to a server only with
    ``online``, since a stranger's folder could name the server's project. A logger that fails is
    a warning.
    """
    import hydra.utils

    written, records = [], _read_records(folder)
    for name in sorted(KINDS.keys() & records.keys()):
        record = records[name]
        try:
            files.inside(folder, name)
            record["appended"] = {**record.get("appended", {}), **scalars}
            sent = record if online else {**record, "offline": True}
            hydra.utils.get_class(KINDS[name]).append(folder, sent, scalars, step)
            written.append(name)
        except Exception as error:  # a service or its client can raise anything
            log.warning(f"warning: {', '.join(scalars)} did not reach {name}: {error}")
    if written:
        _write_records(folder, records)
    return written


def _read_records(folder: Path) -> dict[str, Any]:
    return files.read_object(folder, LOGGERS) if (folder / LOGGERS).is_file() else {}


def _write_records(folder: Path, records: Mapping[str, Any]) -> None:
    write_atomically(folder / LOGGERS, json.dumps(records, indent=2) + "\n")
