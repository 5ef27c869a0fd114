"""One training run: config in, a trained encoder and its folder out."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rdm_solo import cli
from rdm_solo.runs import failures
from rdm_solo.runs.files import CHECKPOINT, FAILED, METRICS

log = logging.getLogger("rdm_solo")


# Of torchrun, Lightning and srun, in the order in which Lightning asks.
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "SLURM_PROCID")


def run(cfg: DictConfig, folder: Path, extra: Sequence[Any] = ()) -> dict[str, Any]:
    """One run: config in, dataset, method, trainer built, fit, results written to the folder.

    ``extra`` callbacks come after those of every run.
    """
    (folder / FAILED).unlink(missing_ok=True)  # of an earlier run in the same folder
    with cli.sentences():
        parts = build(cfg, folder, extra)
    trainer, model, data = parts["trainer"], parts["model"], parts["data"]
    from rdm_solo import loggers
    from rdm_solo.data.images import DataError

    started = time.perf_counter()
    failed = True
    try:
        trainer.fit(model, datamodule=data, ckpt_path=parts["checkpoint"], weights_only=True)
        failed = False
    except Exception as error:
        answer = isinstance(error, (DataError, FloatingPointError))  # bad image; divergence
        why = str(error) if answer else failures.reason(error)
        if cause := failures.note(folder, why):  # another process was the first, and has said so
            raise cli.Refusal(cause) from error
        if answer:
            cli.fail(why)
        raise
    finally:
        parts["children"].let_go(trainer, failed)
        if trainer.is_global_zero:
            loggers.close(parts["loggers"], failed)
    seconds = time.perf_counter() - started
    if not trainer.is_global_zero or not (folder / METRICS).exists():
        return {}  # interrupted before the first epoch ended
    from rdm_solo.train import closing

    return closing.write(cfg, folder, parts, seconds)


def build(cfg: DictConfig, folder: Path, extra: Sequence[Any] = ()) -> dict[str, Any]:
    """Everything a run needs; ValueErrors from here are answers to what the user typed."""
    from rdm_solo.runs import labels
    from rdm_solo.train import checks, derived_values, resuming

    checks.check(cfg)
    import hydra.utils

    dataset = hydra.utils.instantiate(cfg.dataset.source)
    views = hydra.utils.instantiate(cfg.dataset.views)
    full, derived = derived_values.derive(
        cfg, dataset, views.num_large_crops, views.num_small_crops
    )

    from rdm_solo import callbacks, loggers, methods
    from rdm_solo.callbacks import pictures, progress
    from rdm_solo.callbacks.collapse_watch import CollapseWatch
    from rdm_solo.cli import third_party
    from rdm_solo.lightning import pl
    from rdm_solo.methods import solo_learn
    from rdm_solo.train import datamodule
    from rdm_solo.train.child_processes import Children

    third_party.hush()
    pl.seed_everything(cfg.seed, workers=True, verbose=False)
    model = methods.prepare(methods.build(full), cfg)
    model.labelled = dataset.labelled
    resume = Path(cfg.resume) if cfg.resume else None
    checkpoint = resuming.check_resume(cfg, resume, folder) if resume else None
    if _speaks():
        _announce(full, derived, views, solo_learn.version())

    expand = solo_learn.input_channels(full)
    if expand == dataset.train.channels:
        expand = None
    data = datamodule.DataModule(dataset, views, cfg.batch_size, cfg.seed, expand)
    made, record = loggers.build(cfg, folder, resume)
    kept = folder / CHECKPOINT
    watch = CollapseWatch(cfg, derived, **cfg.watch)
    started = Children()
    trainer = _trainer(
        cfg,
        derived,
        folder,
        made,
        [
            started,
            callbacks.WeightedKNN(**cfg.knn),
            callbacks.Diagnostics(folder, **cfg.diagnostics, resume=resume),
            watch,
            pictures.Pictures(**cfg.pictures, title=labels.title(cfg)),
            callbacks.EpochTable(folder, resume=resume),
            *([progress.Progress()] if cfg.trainer.enable_progress_bar else []),
            pl.callbacks.ModelCheckpoint(
                kept.parent, kept.stem, save_top_k=1, enable_version_counter=False
            ),
            *extra,
        ],
    )
    if trainer.is_global_zero:
        loggers.introduce(made, record, cfg, folder, derived, checkpoint)
    return {
        "trainer": trainer,
        "model": model,
        "data": data,
        "derived": derived,
        "checkpoint": checkpoint,
        "loggers": made,
        "watch": watch,
        "children": started,
    }


def _trainer(
    cfg: DictConfig,
    derived: dict[str, Any],
    folder: Path,
    loggers: list[Any],
    callbacks: list[Any],
) -> Any:
    from rdm_solo.lightning import pl

    options: dict[str, Any] = OmegaConf.to_container(cfg.trainer, resolve=True)  # type: ignore[assignment]
    if options["accelerator"] == "auto":  # Lightning would take Apple's, which has no float64
        options["accelerator"] = "gpu" if _has_gpu() else "cpu"
    if options["sync_batchnorm"] is None:
        on_gpu = options["accelerator"] != "cpu"
        options["sync_batchnorm"] = derived["processes"] > 1 and on_gpu
    options["enable_progress_bar"] = False  # Lightning's; ours is a callback
    defaults = {
        "max_epochs": cfg.max_epochs,
        "default_root_dir": folder,
        "logger": loggers or False,
        "callbacks": callbacks,
        "num_sanity_val_steps": 0,
        "use_distributed_sampler": False,
        "enable_model_summary": False,
        "log_every_n_steps": 1,
    }
    refusals = (TypeError, ValueError, pl.utilities.exceptions.MisconfigurationException)
    try:
        return pl.Trainer(**{**defaults, **options})
    except refusals as error:
        reason = str(error).removeprefix("Trainer.__init__() ")
        raise ValueError(f"Lightning's Trainer refuses trainer=...: {reason}") from error


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _speaks() -> bool:
    """Whether this is the first process; before the Trainer is built, its launcher has said so."""
    given = (os.environ[name] for name in RANK_VARIABLES if name in os.environ)
    return next(given, "0") == "0"


def _announce(cfg: DictConfig, derived: dict[str, Any], views: Any, solo: str) -> None:
    from rdm_solo.runs import labels
    from rdm_solo.train import derived_values

    log.info(f"{labels.title(cfg)}, solo-learn {solo}")
    log.info(
        f"global batch {derived['global_batch']} = {cfg.batch_size} x {derived['processes']} "
        f"process(es) x {cfg.trainer.accumulate_grad_batches} accumulated; learning rate "
        f"{derived['base_lr']:g} x {derived['global_batch']}/256 = {derived['lr']:g}"
    )
    smallest = min(pipeline.crop_scale[0] for pipeline in views.pipelines)
    for sentence in derived_values.warnings(cfg, derived, smallest):
        log.warning(f"warning: {sentence}")
