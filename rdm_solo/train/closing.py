"""Close a run's loggers, write its summary.json and print the closing table."""

import contextlib
import json
import logging
import math
import platform
import shlex
import time
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from rdm_solo import __version__, loggers, runs
from rdm_solo.callbacks import Checkpoints, CollapseWatch
from rdm_solo.callbacks.divergence import Diverged
from rdm_solo.lightning import pl
from rdm_solo.methods import solo_learn
from rdm_solo.runs import checkpoints
from rdm_solo.runs.columns import COLUMNS
from rdm_solo.runs.files import FIGURES, METRICS, SUMMARY, write_whole
from rdm_solo.runs.metrics_file import last_values
from rdm_solo.train.folders import resume_command

log = logging.getLogger("rdm_solo")


@contextlib.contextmanager
def summarised(trainer: Any, folder: Path, settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Write the summary of a run that the body trains, however it ends; yield it to be filled."""
    summary: dict[str, Any] = {}
    started = time.perf_counter()
    error: BaseException | None = None
    try:
        yield summary
    except BaseException as raised:
        error = raised
        # Lightning 2.6 kills this process soon after another one of the run has failed.
        getattr(trainer.strategy.launcher, "procs", []).clear()
        raise
    finally:
        if trainer.is_global_zero:
            failed = isinstance(error, Exception)
            loggers.close_all(trainer.loggers, failed)
            if not failed or isinstance(error, Diverged):
                summary.update(_summary(trainer, folder, error))
                summary.update(settings, seconds=round(time.perf_counter() - started, 2))
                summary["config"] = OmegaConf.to_container(settings["config"], resolve=True)
                write_whole(folder / SUMMARY, json.dumps(summary, indent=2) + "\n")
                _report(summary, folder)
            if isinstance(error, KeyboardInterrupt) and checkpoints.present(folder):
                log.info(f"to resume: {resume_command(folder)}")


def _summary(trainer: Any, folder: Path, error: BaseException | None) -> dict[str, Any]:
    """Return what a run has to say of itself at its end."""
    watch = next((c for c in trainer.callbacks if isinstance(c, CollapseWatch)), None)
    writer = next((c for c in trainer.callbacks if isinstance(c, Checkpoints)), None)
    device = trainer.strategy.root_device
    stopped = str(error) if isinstance(error, KeyboardInterrupt) else None
    return {
        **last_values({name: values.tolist() for name, values in _metrics(folder).items()}),
        "finished": error is None,
        "warnings": watch.warnings if watch else [],
        "stopped": stopped or (watch.stopped if watch else None),
        "diverged": error.as_dict() if isinstance(error, Diverged) else None,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "processes": trainer.world_size,
        "versions": versions(),
        **({"best": writer.best} if writer and writer.watch_best else {}),
    }


def _metrics(folder: Path) -> dict[str, Any]:
    return runs.read_metrics(folder) if (folder / METRICS).exists() else {}


def _report(summary: Mapping[str, Any], folder: Path) -> None:
    """Print the closing table and where the results are."""
    columns = {name: values.tolist() for name, values in _metrics(folder).items()}
    if columns:
        log.info(closing_table(columns))
    for warning in summary["warnings"]:
        log.info(f"! {warning['kind']} in epoch {warning['epoch']}, see the warning above")
    log.info(f"{summary['seconds']:.0f} s; results are in {folder}")
    if pictures := sorted(path.name for path in (folder / FIGURES).glob("*.png")):
        log.info(f"pictures: {', '.join(pictures)} in {folder / FIGURES}")
    if columns:
        page = shlex.quote(str(folder))
        log.info(f"all pictures on one page: python -m rdm_solo.report {page}")


def versions() -> dict[str, str]:
    """Return the versions that a result depends on."""
    lightning = pl.__name__.split(".")[0].replace("_", "-")
    packages = ("torch", "torchvision", "torchmetrics", "numpy", lightning)
    return {
        "python": platform.python_version(),
        "rdm_solo": __version__,
        **{name: metadata.version(name) for name in packages},
        "solo-learn": solo_learn.version(),
    }


def closing_table(columns: Mapping[str, list[float]]) -> str:
    """Return the main columns at five epochs from the first to the last, as text.

    >>> print(closing_table({"epoch": [1.0, 2.0], "train/loss": [-0.5, math.nan]}))
    epoch              1        2
    train/loss    -0.500        -
    """
    total = len(columns.get("epoch", []))
    picked = sorted({0, total // 4, total // 2, 3 * total // 4, total - 1} - {total, -1})
    names = [name for name, column in COLUMNS.items() if column.chart and name in columns]
    width = max(map(len, ["epoch", *names])) + 1
    lines = ["epoch".ljust(width) + "".join(f"{columns['epoch'][row]:>9.0f}" for row in picked)]
    for name in names:
        values = [columns[name][row] for row in picked]
        cells = [f"{v:>9.3f}" if math.isfinite(v) else f"{'-':>9}" for v in values]
        if any(map(math.isfinite, columns[name])):
            lines.append(name.ljust(width) + "".join(cells))
    return "\n".join(lines)
