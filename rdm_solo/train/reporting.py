"""Announce a run, describe it to its loggers, and write its summary."""

import contextlib
import json
import logging
import math
import os
import platform
import shlex
import time
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from rdm_solo import __version__, loggers
from rdm_solo.callbacks import Checkpoints, CollapseWatch
from rdm_solo.callbacks.divergence import Diverged
from rdm_solo.collapse.advice import config_warnings
from rdm_solo.data.views import Views
from rdm_solo.ground.lightning import pl
from rdm_solo.methods import solo_learn
from rdm_solo.methods.chosen_filter import ChosenFilter
from rdm_solo.runs import checkpoints, metrics_file, saved_config
from rdm_solo.runs.columns import COLUMNS
from rdm_solo.runs.files import METRICS, SUMMARY, write_atomically
from rdm_solo.train.claims import Start
from rdm_solo.train.processes import SWEEP_FOLDER
from rdm_solo.train.training_data import Derived

log = logging.getLogger("rdm_solo")


def announce(cfg: DictConfig, folder: Path, derived: Derived, views: Views, start: Start) -> None:
    """Log the folder, batch size, learning rate and warnings, and the epoch of a resumed run."""
    log.info(
        f"{cfg.max_epochs} epochs, seed {cfg.seed}, solo-learn {solo_learn.version()}, in {folder}"
    )
    log.info(
        f"global batch {derived.global_batch} = {cfg.batch_size} x {derived.processes} "
        f"process(es) x {cfg.trainer.accumulate_grad_batches} accumulated; learning rate "
        f"{derived.base_lr:g} x {derived.global_batch}/256 = {derived.lr:g}"
    )
    if start.epochs:
        log.info(f"resuming after epoch {start.epochs}")
    smallest_crop = min(pipeline.crop_scale[0] for pipeline in views.pipelines)
    for sentence in config_warnings(cfg, derived.filter_batch, smallest_crop):
        log.warning(f"warning: {sentence}")


def run_info(cfg: DictConfig, folder: Path, derived: Derived, start: Start) -> loggers.RunInfo:
    """Return the run's name, group, hyperparameters and config for its loggers."""
    chosen = ChosenFilter.from_config(cfg)
    setting = cfg.method.name
    if not chosen.absent:
        setting += f"-{chosen.label}"
    p, schedule = cfg.p, None
    if p is not None:
        setting += f"-p={saved_config.exponent(cfg.p)}"
    if OmegaConf.is_config(cfg.p):
        p, schedule = None, saved_config.exponent(cfg.p)
    config: Any = OmegaConf.to_container(cfg, resolve=True)
    sweep = os.environ.get(SWEEP_FOLDER)
    if sweep:
        config["sweep_folder"] = sweep  # W&B reserves "sweep" for its own sweeps
    return loggers.RunInfo(
        folder=folder,
        name=f"{setting}-seed={cfg.seed}",
        group=f"{cfg.dataset.name}-{setting}",
        hyperparameters={
            "method": cfg.method.name,
            "filter": chosen.label,
            "p": None if p is None else float(p),
            "p_schedule": schedule,
            "dataset": cfg.dataset.name,
            "backbone": cfg.backbone.name,
            "batch": derived.global_batch,
            "lr": derived.lr,
            "weight_decay": cfg.optimizer.weight_decay,
            "epochs": cfg.max_epochs,
            "seed": cfg.seed,
        },
        config=config,
        step=start.step,
    )


@contextlib.contextmanager
def summarise(trainer: Any, folder: Path, settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the run's summary and write it if the body finishes, is stopped, or diverges."""
    summary = dict(settings)
    started = time.perf_counter()
    error: BaseException | None = None
    try:
        yield summary
    except BaseException as raised:
        error = raised
        # Otherwise Lightning 2.6 kills this process when another process of the run fails.
        getattr(trainer.strategy.launcher, "procs", []).clear()
        raise
    finally:
        has_result = isinstance(error, Diverged) or not isinstance(error, Exception)
        if trainer.is_global_zero and has_result:
            table = metrics_file.Table({}, {})
            if (folder / METRICS).exists():
                table = metrics_file.read(folder)
            columns = {name: x.tolist() for name, x in table.columns.items() if len(x)}
            summary |= metrics_file.last_values(columns)
            summary |= _outcome(trainer, error)
            summary["seconds"] = round(time.perf_counter() - started, 2)
            write_atomically(folder / SUMMARY, json.dumps(summary, indent=2) + "\n")
            _report(summary, final_table(columns, table.untrained), folder)
        stopped = isinstance(error, KeyboardInterrupt)
        if trainer.is_global_zero and stopped and checkpoints.present(folder):
            resume = shlex.quote(f"resume={folder}")
            log.info(f"to resume: rdm-solo train {resume}")


def _outcome(trainer: Any, error: BaseException | None) -> dict[str, Any]:
    """Return a run's warnings, device and versions, and why it stopped."""
    outcome: dict[str, Any] = {
        "finished": error is None,
        "warnings": [],
        "stopped": str(error) if isinstance(error, KeyboardInterrupt) else None,
        "diverged": error.as_dict() if isinstance(error, Diverged) else None,
        "device": trainer.strategy.root_device.type,
        "processes": trainer.world_size,
        "versions": versions(),
    }
    if outcome["device"] == "cuda":
        outcome["device"] = torch.cuda.get_device_name(trainer.strategy.root_device)
    for callback in trainer.callbacks:
        if isinstance(callback, CollapseWatch):
            outcome["warnings"] = callback.alarm.warnings
            outcome["stopped"] = outcome["stopped"] or callback.stopped
        elif isinstance(callback, Checkpoints) and callback.keep_best:
            outcome["best"] = callback.best
    return outcome


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


def _report(summary: Mapping[str, Any], table: str, folder: Path) -> None:
    """Log the final table, the warnings and the folder."""
    if table:
        log.info(table)
    for warning in summary["warnings"]:
        log.info(f"! {warning['kind']} in epoch {warning['epoch']}, see above")
    log.info(f"{summary['seconds']:.0f} s; results are in {folder}")
    if table:
        page = shlex.quote(str(folder))
        log.info(f"figures and tables on one page: rdm-solo report {page}")


def final_table(columns: Mapping[str, list[float]], untrained: Mapping[str, float]) -> str:
    """Format the main columns at up to six epochs as text; epoch 0 is the untrained network.

    >>> print(final_table({"epoch": [1.0, 2.0], "val/acc1": [50.0, math.nan]}, {"val/acc1": 20.0}))
    epoch            0        1        2
    val/acc1    20.000   50.000        -
    """
    if not columns.get("epoch"):
        return ""
    if untrained:
        columns = {name: [untrained.get(name, math.nan), *x] for name, x in columns.items()}
        columns["epoch"][0] = 0
    total = len(columns["epoch"])
    rows = sorted({0, 1, total // 4, total // 2, 3 * total // 4, total - 1} & {*range(total)})
    names = [name for name, column in COLUMNS.items() if column.chart and name in columns]
    width = max(len(name) for name in ("epoch", *names)) + 1

    epochs = [f"{columns['epoch'][row]:>9.0f}" for row in rows]
    lines = ["epoch".ljust(width) + "".join(epochs)]
    for name in names:
        values = columns[name]
        if any(math.isfinite(value) for value in values):
            cells = [_cell(values[row]) for row in rows]
            lines.append(name.ljust(width) + "".join(cells))
    return "\n".join(lines)


def _cell(value: float) -> str:
    return f"{value:>9.3f}" if math.isfinite(value) else f"{'-':>9}"
