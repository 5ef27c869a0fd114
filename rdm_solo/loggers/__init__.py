"""TensorBoard and Weights & Biases, beside the metrics.csv of every run.

``loggers.json`` in a run's folder records its loggers, so that every start of the run continues
the same W&B run and the same TensorBoard log, and :func:`append` can add to them later.
"""

import importlib.util
import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rdm_solo.cli.answers import instantiate
from rdm_solo.loggers.run_logger import RunInfo, RunLogger
from rdm_solo.messages import UserError
from rdm_solo.runs import files
from rdm_solo.runs.files import LOGGERS, write_whole

__all__ = ["KINDS", "RunInfo", "RunLogger", "append", "check_packages", "close_all", "open_all"]

log = logging.getLogger("rdm_solo")

# By their names in conf/logger/, which are also those of the packages that they need and of their
# folders. The classes are imported when they are used.
KINDS = {
    "tensorboard": "rdm_solo.loggers.event_files.TensorBoard",
    "wandb": "rdm_solo.loggers.weights_biases.WeightsAndBiases",
}


def check_packages(names: Iterable[str]) -> None:
    """Refuse a logger whose package is not installed."""
    for name in KINDS.keys() & names:
        if importlib.util.find_spec(name) is None:
            raise UserError(
                f"logger={name} needs the package {name}, which is not installed: "
                f"pip install {name}, or leave logger={name} out"
            )


def open_all(choices: Mapping[str, Any], run: RunInfo) -> list[RunLogger]:
    """Open the chosen loggers (``cfg.logger``), on the first process only."""
    records = _read_records(run.folder) if choices else {}
    loggers: dict[str, RunLogger] = {}
    for name, node in choices.items():
        files.inside(run.folder, name)
        open_logger = instantiate(node, _partial_=True, _convert_="all")
        loggers[name] = open_logger(run=run, earlier=records.get(name, {}))
    if loggers:
        _write_records(run.folder, {name: logger.record for name, logger in loggers.items()})
    return list(loggers.values())


def close_all(loggers: Iterable[Any], failed: bool = False) -> None:
    """Close loggers that Lightning has not closed, as it does when ``fit`` returns or raises."""
    for logger in loggers:
        if isinstance(logger, RunLogger):
            logger.finalize("failed" if failed else "success")


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
        except Exception as error:  # a service or its client can raise anything
            log.warning(f"warning: {', '.join(scalars)} did not reach {name}: {error}")
        else:
            written.append(name)
    if written:
        _write_records(folder, records)
    return written


def _read_records(folder: Path) -> dict[str, Any]:
    try:
        return files.read_object(folder, LOGGERS)
    except FileNotFoundError:
        return {}


def _write_records(folder: Path, records: Mapping[str, Any]) -> None:
    write_whole(folder / LOGGERS, json.dumps(records, indent=2) + "\n")
