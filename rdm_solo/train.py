"""Pretrain: ``python -m rdm_solo.train method=simsiam filter=target_pow p=-0.5``."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rdm_solo import cli, failures

log = logging.getLogger("rdm_solo")

# Lightning starts the other processes of a DDP run with this process's command line. They read the
# composed config of the first one instead of composing (or, in a multirun, sweeping) again.
CONFIG_VARIABLE, FOLDER_VARIABLE = "RDM_SOLO_CONFIG", "RDM_SOLO_FOLDER"
# Of torchrun, Lightning and srun, in the order in which Lightning asks.
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "SLURM_PROCID")


def run(cfg: DictConfig, folder: Path, extra: Sequence[Any] = ()) -> dict[str, Any]:
    """One run: config in, dataset, method, trainer built, fit, results written to the folder.

    ``extra`` callbacks come after those of every run.
    """
    (folder / failures.FAILED).unlink(missing_ok=True)  # of an earlier run in the same folder
    with cli.sentences():
        parts = build(cfg, folder, extra)
    trainer, model, data = parts["trainer"], parts["model"], parts["data"]
    from rdm_solo import loggers
    from rdm_solo.data import DataError

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
    if not trainer.is_global_zero or not (folder / "metrics.csv").exists():
        return {}  # interrupted before the first epoch ended
    from rdm_solo import results

    return results.write(cfg, folder, parts, seconds)


def build(cfg: DictConfig, folder: Path, extra: Sequence[Any] = ()) -> dict[str, Any]:
    """Everything a run needs; ValueErrors from here are answers to what the user typed."""
    from rdm_solo import settings

    settings.check(cfg)
    import hydra.utils

    dataset = hydra.utils.instantiate(cfg.dataset.source)
    views = hydra.utils.instantiate(cfg.dataset.views)
    full, derived = settings.derive(cfg, dataset, views.num_large_crops, views.num_small_crops)

    from rdm_solo import callbacks, datamodule, host, loggers, methods, pictures, quiet, terminal
    from rdm_solo.children import Children
    from rdm_solo.watch import CollapseWatch

    pl = host.pl
    quiet.hush()
    pl.seed_everything(cfg.seed, workers=True, verbose=False)
    model = methods.prepare(methods.build(full), cfg)
    model.labelled = dataset.labelled
    resume = Path(cfg.resume) if cfg.resume else None
    checkpoint = settings.check_resume(cfg, resume, folder) if resume else None
    if _speaks():
        _announce(full, derived, views, host.version())

    expand = host.input_channels(full)
    if expand == dataset.train.channels:
        expand = None
    data = datamodule.DataModule(dataset, views, cfg.batch_size, cfg.seed, expand)
    made, record = loggers.build(cfg, folder, resume)
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
            pictures.Pictures(**cfg.pictures, title=settings.title(cfg)),
            callbacks.EpochTable(folder, resume=resume),
            *([terminal.Progress()] if cfg.trainer.enable_progress_bar else []),
            pl.callbacks.ModelCheckpoint(
                folder / "checkpoints", "last", save_top_k=1, enable_version_counter=False
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
    from rdm_solo.host import pl

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
    from rdm_solo import settings

    log.info(f"{settings.title(cfg)}, solo-learn {solo}")
    log.info(
        f"global batch {derived['global_batch']} = {cfg.batch_size} x {derived['processes']} "
        f"process(es) x {cfg.trainer.accumulate_grad_batches} accumulated; learning rate "
        f"{derived['base_lr']:g} x {derived['global_batch']}/256 = {derived['lr']:g}"
    )
    smallest = min(pipeline.crop_scale[0] for pipeline in views.pipelines)
    for sentence in settings.warnings(cfg, derived, smallest):
        log.warning(f"warning: {sentence}")


def _job(cfg: DictConfig) -> None:
    """One Hydra job."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    from rdm_solo import sweep

    folder = Path(HydraConfig.get().runtime.output_dir)
    before = dict(os.environ)
    os.environ[CONFIG_VARIABLE] = str(folder / ".hydra" / "config.yaml")
    os.environ[FOLDER_VARIABLE] = str(folder)
    try:
        run(cfg, folder)
    except (Exception, cli.Refusal) as error:
        if HydraConfig.get().mode is not RunMode.MULTIRUN:
            raise
        sweep.note_failure(folder, error)  # the sweep's other runs go on
    finally:
        # Lightning leaves its rank and port behind, by which the next job of a sweep would take
        # itself for a process that somebody else started.
        for name in set(os.environ) - set(before):
            del os.environ[name]
        _leave_process_group()


def _leave_process_group() -> None:
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def main() -> None:
    """The command."""
    if CONFIG_VARIABLE in os.environ and "LOCAL_RANK" in os.environ:
        cli.say_anything()
        run(OmegaConf.load(os.environ[CONFIG_VARIABLE]), Path(os.environ[FOLDER_VARIABLE]))  # type: ignore[arg-type]
        return
    cli.command(_job, "config", ["resume"])


if __name__ == "__main__":
    main()
