"""Writes summary.json, erank.png and the closing table."""

from __future__ import annotations

import json
import logging
import math
import platform
import shlex
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from omegaconf import DictConfig, OmegaConf

from rdm_solo import __version__, runs
from rdm_solo.callbacks.pictures import draw_ranks
from rdm_solo.lightning import pl
from rdm_solo.methods import solo_learn
from rdm_solo.runs import metrics_file
from rdm_solo.runs.columns import COLUMNS
from rdm_solo.runs.files import CHECKPOINT, FIGURES, METRICS, SUMMARY, write_whole

if TYPE_CHECKING:
    from rdm_solo.train.parts import Parts

__all__ = ["closing_table", "write"]

log = logging.getLogger("rdm_solo")


def write(
    cfg: DictConfig, folder: Path, parts: Parts, seconds: float, stopped: str = ""
) -> dict[str, Any]:
    """``summary.json`` and ``figures/erank.png`` in the run's folder, a table in the terminal."""
    trainer = parts.trainer
    read = runs.read_metrics(folder)
    columns = {name: values.tolist() for name, values in read.items()}
    last = {name: _last(values) for name, values in columns.items()}
    device = trainer.strategy.root_device
    summary = {
        "format": metrics_file.NUMBER,
        "last": last,
        "epochs_with_target_above_online": _share_above(columns),
        "derived": parts.derived,
        "seed": cfg.seed,
        "seconds": round(seconds, 2),
        "warnings": parts.watch.warnings,
        "stopped": stopped or parts.watch.stopped,  # why, if before its last epoch
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "processes": trainer.world_size,
        "versions": versions(),
        "config": OmegaConf.to_container(cfg, resolve=True),
    }
    write_whole(folder / SUMMARY, json.dumps(summary, indent=2) + "\n")
    draw_ranks(folder, cfg)
    log.info(closing_table(columns))
    for warning in parts.watch.warnings:
        log.info(f"! {warning['kind']} in epoch {warning['epoch']}, as said above")
    figures = folder / FIGURES
    pictures = sorted(path.name for path in figures.glob("*.png"))
    kept = " and checkpoints" * (folder / CHECKPOINT).exists()  # fast_dev_run keeps none
    log.info(f"{seconds:.0f} s; {METRICS}, {SUMMARY}{kept} are in {folder}")
    if pictures:
        log.info(f"pictures: {', '.join(pictures)} in {figures}")
    log.info(f"all pictures on one page: python -m rdm_solo.report {shlex.quote(str(folder))}")
    return summary


def versions() -> dict[str, str]:
    """The versions that a result depends on."""
    found = {"python": platform.python_version(), "rdm_solo": __version__}
    for name in (
        "torch",
        "torchvision",
        "torchmetrics",
        "numpy",
        pl.__name__.split(".")[0],
    ):
        name = name.replace("_", "-")
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "unknown"
    found["solo-learn"] = solo_learn.version()
    return found


def closing_table(columns: dict[str, list[float]]) -> str:
    """The main columns at five epochs from the first to the last, as text.

    >>> print(closing_table({"epoch": [1.0, 2.0], "train/loss": [-0.5, -0.75]}))
    epoch              1        2
    train/loss    -0.500   -0.750
    """
    total = len(columns.get("epoch", []))
    picked = sorted({0, total // 4, total // 2, 3 * total // 4, total - 1} - {total, -1})
    names = [name for name, column in COLUMNS.items() if column.chart and name in columns]
    width = max(map(len, ["epoch", *names])) + 1
    lines = ["epoch".ljust(width) + "".join(f"{columns['epoch'][row]:>9.0f}" for row in picked)]
    for name in names:
        if any(map(math.isfinite, columns[name])):
            cells = (columns[name][row] for row in picked)
            lines.append(
                name.ljust(width)
                + "".join(f"{cell:>9.3f}" if math.isfinite(cell) else f"{'-':>9}" for cell in cells)
            )
    return "\n".join(lines)


def _last(values: list[float]) -> float | None:
    measured = [value for value in values if math.isfinite(value)]
    return measured[-1] if measured else None


def _share_above(columns: dict[str, list[float]]) -> float | None:
    gaps = [gap for gap in columns.get("erank/gap", []) if math.isfinite(gap)]
    # Equal branches differ by rounding, which is no gap.
    return sum(gap > 1e-6 for gap in gaps) / len(gaps) if gaps else None
