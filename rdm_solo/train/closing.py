"""Writes summary.json and the closing table."""

import json
import logging
import math
import platform
import shlex
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from rdm_solo import __version__, runs
from rdm_solo.callbacks import Checkpoints, CollapseWatch
from rdm_solo.callbacks.divergence import Diverged
from rdm_solo.lightning import pl
from rdm_solo.methods import solo_learn
from rdm_solo.runs import checkpoints, metrics_file
from rdm_solo.runs.columns import COLUMNS
from rdm_solo.runs.files import CHECKPOINT, FIGURES, METRICS, SUMMARY, write_whole
from rdm_solo.runs.metrics_file import last_values

log = logging.getLogger("rdm_solo")


def write(
    folder: Path,
    trainer: Any,
    recorded: Mapping[str, Any],
    seconds: float,
    stopped: str,
    diverged: Diverged | None = None,
) -> dict[str, Any]:
    """``summary.json`` in the run's folder, a table in the terminal; the summary is returned.

    ``recorded`` are the settings; ``stopped`` says why the run ended before its last epoch.
    """
    found = runs.read_metrics(folder) if (folder / METRICS).exists() else {}
    columns = {name: values.tolist() for name, values in found.items()}
    watch = next((c for c in trainer.callbacks if isinstance(c, CollapseWatch)), None)
    warnings = watch.warnings if watch else []
    device = trainer.strategy.root_device
    summary = {
        "format": metrics_file.NUMBER,
        **last_values(columns),
        "seconds": round(seconds, 2),
        "warnings": warnings,
        "stopped": stopped or (watch.stopped if watch else None),
        "diverged": diverged.as_dict() if diverged else None,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "processes": trainer.world_size,
        "versions": versions(),
        **recorded,
    }
    written = next((c for c in trainer.callbacks if isinstance(c, Checkpoints)), None)
    if written and written.watch_best:
        summary["best"] = written.best  # epoch and kNN accuracy of best.ckpt
    write_whole(folder / SUMMARY, json.dumps(summary, indent=2) + "\n")
    if columns:
        log.info(closing_table(columns))
    for warning in warnings:
        log.info(f"! {warning['kind']} in epoch {warning['epoch']}, as said above")
    figures = folder / FIGURES
    pictures = sorted(path.name for path in figures.glob("*.png"))
    kept = " and checkpoints" * (folder / CHECKPOINT).exists()  # fast_dev_run keeps none
    written = f"{METRICS}, {SUMMARY}{kept} are" if columns else f"{SUMMARY} is"
    log.info(f"{seconds:.0f} s; {written} in {folder}")
    if pictures:
        log.info(f"pictures: {', '.join(pictures)} in {figures}")
    if columns:
        page = shlex.quote(str(folder))
        log.info(f"all pictures on one page: python -m rdm_solo.report {page}")
    return summary


def how_to_go_on(folder: Path) -> str:
    """The command that continues a run that was stopped."""
    if not checkpoints.present(folder):
        return "there is no checkpoint to go on from"
    return f"to go on: python -m rdm_solo.train {shlex.quote(f'resume={folder}')}"


def versions() -> dict[str, str]:
    """The versions that a result depends on."""
    lightning = pl.__name__.split(".")[0].replace("_", "-")
    packages = ("torch", "torchvision", "torchmetrics", "numpy", lightning)
    return {
        "python": platform.python_version(),
        "rdm_solo": __version__,
        **{name: metadata.version(name) for name in packages},
        "solo-learn": solo_learn.version(),
    }


def closing_table(columns: Mapping[str, list[float]]) -> str:
    """The main columns at five epochs from the first to the last, as text.

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
        cells = [columns[name][row] for row in picked]
        shown = [f"{cell:>9.3f}" if math.isfinite(cell) else f"{'-':>9}" for cell in cells]
        if any(map(math.isfinite, columns[name])):
            lines.append(name.ljust(width) + "".join(shown))
    return "\n".join(lines)
