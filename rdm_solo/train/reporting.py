"""Announce a run, describe it to its loggers, and write its summary."""

import contextlib
import json
import logging
import math
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf

from rdm_solo import loggers
from rdm_solo.callbacks import Checkpoints, CollapseWatch
from rdm_solo.callbacks.divergence import Diverged
from rdm_solo.callbacks.logged import RunEnd
from rdm_solo.collapse.advice import RunSettings, config_warnings
from rdm_solo.collapse.health import TOO_EARLY, UNMEASURED
from rdm_solo.collapse.rules import MIN_GAP
from rdm_solo.data.views import Views
from rdm_solo.ground.devices import device_name
from rdm_solo.ground.lightning import pl
from rdm_solo.methods import solo_learn
from rdm_solo.methods.chosen_filter import ChosenFilter, exponent
from rdm_solo.runs import metrics_file
from rdm_solo.runs.columns import COLUMNS
from rdm_solo.runs.files import METRICS, SUMMARY, write_atomically
from rdm_solo.runs.folder import RunFolder, load
from rdm_solo.runs.versions import versions as package_versions
from rdm_solo.train import device_defaults
from rdm_solo.train.claims import Start
from rdm_solo.train.processes import SWEEP_FOLDER, on_cpu
from rdm_solo.train.training_data import Derived

log = logging.getLogger("rdm_solo")


def announce(cfg: DictConfig, folder: Path, derived: Derived, views: Views, start: Start) -> None:
    """Log the folder, batch size, learning rate and warnings, and the epoch of a resumed run.

    On a GPU, also log the options that make it faster.
    """
    log.info(
        f"{cfg.max_epochs} epochs, seed {cfg.seed}, solo-learn {solo_learn.version()}, in {folder}"
    )
    log.info(
        f"global batch {derived.global_batch} = {cfg.batch_size} x {derived.processes} "
        f"process(es) x {cfg.trainer.accumulate_grad_batches} accumulated; learning rate "
        f"{derived.base_lr:g} x {derived.global_batch}/256 = {derived.lr:g}"
    )
    if not on_cpu(cfg.trainer):
        log.info(f"on a GPU: {device_defaults.describe(cfg)}")
    if start.epochs:
        source = f" of {start.source}" if start.source else ""
        log.info(f"resuming after epoch {start.epochs}{source}")
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
        if trainer.is_global_zero:
            try:
                if has_result:
                    summary |= _end_of_run(trainer, error)
                    summary["seconds"] = round(wall_time.seconds(), 2)
                    _write(summary, folder)
                if error is None:
                    for callback in trainer.callbacks:
                        if isinstance(callback, RunEnd):
                            callback.on_run_end(trainer)
            finally:
                loggers.close_all(trainer.loggers)
            if has_result:  # after the loggers, which may print as well
                _report(summary, load(folder))
            if isinstance(error, KeyboardInterrupt):
                log.info(f"to resume: rdm-solo train {shlex.quote(f'resume={folder}')}")


def _write(summary: dict[str, Any], folder: Path) -> None:
    """Add the last values and the outcome in one sentence to a run's summary, and write it."""
    columns = {}
    if (folder / METRICS).exists():
        for name, values in metrics_file.read_metrics(folder).items():
            if len(values):
                columns[name] = values.tolist()
    summary |= metrics_file.last_values(columns)
    # The run is judged by what its folder holds, as everywhere else.
    write_atomically(folder / SUMMARY, json.dumps(summary, indent=2) + "\n")
    summary["outcome"] = closing_sentence(load(folder))
    write_atomically(folder / SUMMARY, json.dumps(summary, indent=2) + "\n")


def _end_of_run(trainer: Any, error: BaseException | None) -> dict[str, Any]:
    """Return a run's warnings, device and versions, and why it stopped."""
    facts: dict[str, Any] = {
        "finished": error is None,
        "warnings": [],
        "stopped": None,
        "diverged": None,
        "device": device_name(trainer.strategy.root_device),
        "processes": trainer.world_size,
        "versions": versions(),
    }
    if isinstance(error, KeyboardInterrupt):
        facts["stopped"] = str(error)
    if isinstance(error, Diverged):
        facts["diverged"] = error.as_dict()
    for callback in trainer.callbacks:
        if isinstance(callback, CollapseWatch):
            facts["warnings"] = callback.alarm.warnings
            facts["stopped"] = facts["stopped"] or callback.stopped
        elif isinstance(callback, Checkpoints) and callback.keep_best:
            facts["best"] = callback.best
    return facts


def versions() -> dict[str, str]:
    """Return the versions that a result depends on."""
    lightning = pl.__name__.split(".")[0].replace("_", "-")
    names = ("torch", "torchvision", "torchmetrics", "numpy", lightning)
    return package_versions(*names) | {"solo-learn": solo_learn.version()}


def _report(summary: Mapping[str, Any], run: RunFolder) -> None:
    """Log the outcome, the final table, the warnings and the folder.

    The terminal of a sweep gets one line instead.
    """
    seconds = f"{summary['seconds']:.0f} s"
    if os.environ.get(SWEEP_FOLDER):
        line = f"{run.folder.name}: {summary['outcome']}; {seconds}"
        if summary["stopped"]:
            line += f"; stopped early ({summary['stopped']})"
        print(line, flush=True)
    log.info(summary["outcome"])
    if run.epochs:
        log.info(final_table(run))
    for warning in summary["warnings"]:
        log.info(f"! {warning['kind']} in epoch {warning['epoch']}, see above")
    log.info(f"{seconds}; results are in {run.folder}")
    if run.epochs:
        folder = shlex.quote(str(run.folder))
        log.info(f"figures and tables on one page: rdm-solo report {folder}")


def closing_sentence(run: RunFolder) -> str:
    """Say in one sentence how well kNN classifies, which branch leads, and whether a run is alive.

    Without a measured kNN accuracy it is the online classifier's.
    """
    clauses = []
    for name in ("val/knn_acc1", "val/acc1"):
        epoch, accuracy = run.latest(name)
        if not math.isfinite(accuracy):
            continue
        text = f"{COLUMNS[name].label} {accuracy:.1f} %"
        if epoch < run.last_epoch:
            text += f" in epoch {epoch}"
        if name in run.untrained:
            text += f" (untrained {run.untrained[name]:.1f} %"
            if "val/knn_pixels" in run.untrained:
                text += f", raw pixels {run.untrained['val/knn_pixels']:.1f} %"
            text += ")"
        clauses.append(text)
        break

    gaps = [epoch.gap for epoch in run.measured_epochs if epoch.epoch and math.isfinite(epoch.gap)]
    if gaps:
        clauses.append(_leading_branch(gaps))

    answer = run.health.answer.removeprefix("alive: ")
    if answer == TOO_EARLY:
        answer = "too early to judge collapse"
    elif answer == UNMEASURED:
        answer = "collapse not judged, because the outputs were not measured"
    if run.health.number:
        answer += f": {run.health.number}"
    clauses.append(answer)
    return "; ".join(clauses)


def _leading_branch(gaps: Sequence[float]) -> str:
    """Say in how many epochs the target's rank is above the online one, from their log ratios.

    >>> _leading_branch([0.3, 0.2, -0.1])
    'effective rank of the target above the online one in 2 of 3 epochs'
    """
    if max(map(abs, gaps)) <= MIN_GAP:
        return "equal effective ranks of both branches"
    ahead = sum(gap > MIN_GAP for gap in gaps)
    epochs = f"{ahead} of {len(gaps)} epochs"
    if ahead == len(gaps):
        epochs = "every epoch"
    return f"effective rank of the target above the online one in {epochs}"


# The columns of the table at the end of a run.
FINAL = ("train/loss", "val/knn_acc1", "val/acc1", "erank/online", "erank/target", "erank/centred")
FINAL_EPOCHS = 6
WIDTH = 22  # of the labels


def final_table(run: RunFolder) -> str:
    """Format six columns at up to six epochs as text; epoch 0 is the untrained network.

    Epochs in which fewer columns were measured are left out, such as those without kNN.
    """
    shown = []
    counts = np.zeros(run.epochs, int)
    for name in FINAL:
        if run.has_values(name):
            shown.append(name)
            counts += np.isfinite(run.metrics[name])
    complete = np.flatnonzero(counts == counts.max())
    number = FINAL_EPOCHS - bool(run.untrained)
    chosen = complete[np.linspace(0, len(complete) - 1, number, dtype=int)]
    rows = np.unique(chosen)

    epochs = [int(run.metrics["epoch"][row]) for row in rows]
    if run.untrained:
        epochs.insert(0, 0)
    lines = ["epoch".ljust(WIDTH) + "".join(f"{epoch:>9}" for epoch in epochs)]
    for name in shown:
        column = COLUMNS[name]
        values = [run.metrics[name][row] for row in rows]
        if run.untrained:
            values.insert(0, run.untrained.get(name, math.nan))
        cells = "".join(f"{value:>9.{column.digits}f}" for value in values)
        label = column.label.replace("effective rank", "erank")
        lines.append(label.ljust(WIDTH) + cells.replace("nan", "  -"))
    return "\n".join(lines)
