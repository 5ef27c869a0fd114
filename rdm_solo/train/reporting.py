"""Announce a run, describe it to its loggers, and write its summary."""

import contextlib
import json
import logging
import math
import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf

from rdm_solo import loggers
from rdm_solo.callbacks import Checkpoints, CollapseWatch
from rdm_solo.callbacks.divergence import Diverged
from rdm_solo.collapse.advice import RunSettings, config_warnings
from rdm_solo.data.views import Views
from rdm_solo.ground.devices import device_name
from rdm_solo.ground.lightning import pl
from rdm_solo.methods import solo_learn
from rdm_solo.methods.chosen_filter import ChosenFilter, exponent
from rdm_solo.runs import checkpoints, metrics_file
from rdm_solo.runs.columns import COLUMNS
from rdm_solo.runs.files import METRICS, SUMMARY, write_atomically
from rdm_solo.runs.versions import versions as package_versions
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
    for sentence in config_warnings(advice_settings(cfg), derived.filter_batch, smallest_crop):
        log.warning(f"warning: {sentence}")


def advice_settings(cfg: DictConfig) -> RunSettings:
    """Return the settings that warnings about the config and advice after a collapse read."""
    return RunSettings(
        method=cfg.method.name,
        chosen=ChosenFilter.from_config(cfg),
        output_dim=cfg.method.kwargs.proj_output_dim,
        optimizer=cfg.optimizer.name,
        lr=cfg.optimizer.lr,
        warmup_epochs=cfg.scheduler.warmup_epochs,
        max_epochs=cfg.max_epochs,
        precision=cfg.trainer.precision,
    )


def run_info(cfg: DictConfig, folder: Path, derived: Derived, start: Start) -> loggers.RunInfo:
    """Return the run's name, group, hyperparameters and config for its loggers."""
    chosen = ChosenFilter.from_config(cfg)
    p = exponent(chosen.p)
    setting = cfg.method.name
    if not chosen.absent:
        setting += f"-{chosen.label}"
    if p:
        setting += f"-p={p}"
    hyperparameters = {
        "method": cfg.method.name,
        "filter": chosen.label,
        "p": cfg.p,
        "p_schedule": None,
        "dataset": cfg.dataset.name,
        "backbone": cfg.backbone.name,
        "batch": derived.global_batch,
        "lr": derived.lr,
        "weight_decay": cfg.optimizer.weight_decay,
        "epochs": cfg.max_epochs,
        "seed": cfg.seed,
    }
    if OmegaConf.is_config(cfg.p):
        hyperparameters |= {"p": None, "p_schedule": p}
    config: Any = OmegaConf.to_container(cfg, resolve=True)
    sweep = os.environ.get(SWEEP_FOLDER)
    if sweep:
        config["sweep_folder"] = sweep  # W&B reserves "sweep" for its own sweeps
    return loggers.RunInfo(
        folder=folder,
        name=f"{setting}-seed={cfg.seed}",
        group=f"{cfg.dataset.name}-{setting}",
        hyperparameters=hyperparameters,
        config=config,
        step=start.step,
    )


class _WallTime(pl.Callback):
    """Add up the seconds of a run's starts; a checkpoint has those before it."""

    def __init__(self) -> None:
        self.earlier = 0.0
        self.began = perf_counter()

    def seconds(self) -> float:
        return self.earlier + perf_counter() - self.began

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self.seconds()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.earlier = state_dict["seconds"]


@contextlib.contextmanager
def summarise(trainer: Any, folder: Path, settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the run's summary and write it if the body finishes, is stopped, or diverges."""
    summary = dict(settings)
    wall_time = _WallTime()
    trainer.callbacks.append(wall_time)
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
            columns = {}
            untrained: Mapping[str, float] = {}
            if (folder / METRICS).exists():
                table = metrics_file.read(folder)
                untrained = table.untrained
                for name, values in table.columns.items():
                    if len(values):
                        columns[name] = values.tolist()
            summary |= metrics_file.last_values(columns)
            summary |= _outcome(trainer, error)
            summary["seconds"] = round(wall_time.seconds(), 2)
            write_atomically(folder / SUMMARY, json.dumps(summary, indent=2) + "\n")
            _report(summary, final_table(columns, untrained), folder)
            if checkpoints.present(folder) and isinstance(error, KeyboardInterrupt):
                log.info(f"to resume: rdm-solo train {shlex.quote(f'resume={folder}')}")


def _outcome(trainer: Any, error: BaseException | None) -> dict[str, Any]:
    """Return a run's warnings, device and versions, and why it stopped."""
    outcome: dict[str, Any] = {
        "finished": error is None,
        "warnings": [],
        "stopped": None,
        "diverged": None,
        "device": device_name(trainer.strategy.root_device),
        "processes": trainer.world_size,
        "versions": versions(),
    }
    if isinstance(error, KeyboardInterrupt):
        outcome["stopped"] = str(error)
    if isinstance(error, Diverged):
        outcome["diverged"] = error.as_dict()
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
    names = ("torch", "torchvision", "torchmetrics", "numpy", lightning)
    return package_versions(*names) | {"solo-learn": solo_learn.version()}


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
    if not columns:
        return ""
    if untrained:
        columns = {name: [untrained.get(name, math.nan), *x] for name, x in columns.items()}
        columns["epoch"][0] = 0
    epochs = columns["epoch"]
    rows = np.unique(np.linspace(0, len(epochs) - 1, 6, dtype=int))
    charted = []
    for name, column in COLUMNS.items():
        if column.chart and np.isfinite(columns.get(name, math.nan)).any():
            charted.append(name)
    width = max(map(len, charted), default=5) + 1
    lines = ["epoch".ljust(width) + "".join(f"{epochs[row]:>9.0f}" for row in rows)]
    for name in charted:
        cells = "".join(f"{columns[name][row]:>9.3f}" for row in rows)
        lines.append(name.ljust(width) + cells.replace("nan", "  -"))
    return "\n".join(lines)
