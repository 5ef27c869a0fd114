"""TensorBoard and Weights & Biases, beside the metrics.csv of every run.

:class:`RunLogger` is what both of them do. A run's loggers are recorded in ``loggers.json`` in its
folder, so that a run that goes on from it continues them and :func:`append` finds them again.
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
from rdm_solo.runs import reading
from rdm_solo.runs.files import LOGGERS, write_whole

__all__ = ["KINDS", "RunInfo", "RunLogger", "append", "check_packages", "close_all", "open_all"]

log = logging.getLogger("rdm_solo")

# By their names in conf/logger/. The classes are imported where they are used, since each needs an
# optional package of the same name; a logger that needs none is left out of PACKAGES.
KINDS = {
    "tensorboard": "rdm_solo.loggers.event_files.TensorBoard",
    "wandb": "rdm_solo.loggers.weights_biases.WeightsAndBiases",
}
PACKAGES = ("tensorboard", "wandb")


def check_packages(names: Iterable[str]) -> None:
    """Refuse a logger whose package is not installed."""
    for name in names:
        if name in PACKAGES and importlib.util.find_spec(name) is None:
            raise UserError(
                f"logger={name} needs the package {name}, which is not installed: "
                f"pip install {name}, or leave logger={name} out"
            )


def open_all(choices: Mapping[str, Any], run: RunInfo) -> list[RunLogger]:
    """Open the chosen loggers (``cfg.logger``), in the first process alone."""
    earlier = _read_records(run.goes_on_from) if choices and run.goes_on_from else {}
    opened: dict[str, RunLogger] = {}
    for name, node in choices.items():
        open_one = instantiate(node, _partial_=True, _convert_="all")
        try:
            opened[name] = open_one(run=run, earlier=earlier.get(name, {}))
        except TypeError as error:  # an option that it does not have
            raise UserError(f"logger.{name} cannot be opened: {error}") from error
    if opened:
        _write_records(run.folder, {name: logger.record for name, logger in opened.items()})
    return list(opened.values())


def close_all(loggers: Iterable[Any], failed: bool = False) -> None:
    """Close those of ``trainer.loggers`` that are ours; one that cannot be closed is a warning."""
    for logger in loggers:
        try:
            if isinstance(logger, RunLogger):
                logger.close(failed)
        except Exception as error:  # the run itself has ended well
            log.warning(f"warning: {type(logger).__name__} could not be closed: {error}")


def append(
    folder: Path, scalars: Mapping[str, float], step: int, online: bool = False
) -> list[str]:
    """Add scalars to every logger of a finished run; the names of those that took them.

    A folder may come from a stranger, so they are written into it, and sent only with ``online``.
    ``step`` is the optimiser step that they belong to. Where a logger fails (not installed, a full
    disk), a warning names it and the others go on.
    """
    import hydra.utils

    took, records = [], _read_records(folder)
    for name in sorted(KINDS.keys() & records.keys()):
        try:
            record = records[name]
            record["appended"] = {**record.get("appended", {}), **scalars}
            sent = record if online else {**record, "offline": True}
            hydra.utils.get_class(KINDS[name]).append(folder, sent, scalars, step)
        except Exception as error:  # whatever a service or its client raises
            log.warning(f"warning: {', '.join(scalars)} did not reach {name}: {error}")
        else:
            took.append(name)
    if took:
        _write_records(folder, records)
    return took


def _read_records(folder: Path) -> dict[str, Any]:
    try:
        return reading.read_object(folder, LOGGERS)
    except FileNotFoundError:
        return {}


def _write_records(folder: Path, records: Mapping[str, Any]) -> None:
    write_whole(folder / LOGGERS, json.dumps(records, indent=2) + "\n")
