"""One training run: config in, a trained encoder and its folder out."""

from __future__ import annotations

import functools
import logging
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from rdm_solo.runs import failures
from rdm_solo.runs.files import CHECKPOINT, FAILED, METRICS
from rdm_solo.train.parts import Parts, is_first_process

if TYPE_CHECKING:
    pass

log = logging.getLogger("rdm_solo")


class AnotherProcessFailed(RuntimeError):
    """The run failed in another of its processes first, which has given the reason."""


def run(cfg: DictConfig, folder: Path, extra: Sequence[Any] = ()) -> dict[str, Any]:
    """One run: config in, dataset, method, trainer built, fit, results written to the folder.

    ``extra`` callbacks come after those of every run. Raises ``ValueError`` or ``ImportError``
    where the config cannot be run, ``DataError`` where an image cannot be read,
    ``FloatingPointError`` where training diverges, and ``KeyboardInterrupt`` after Ctrl-C.
    """
    return fit(cfg, folder, build(cfg, folder, extra))


def fit(cfg: DictConfig, folder: Path, parts: Parts) -> dict[str, Any]:
    """Train what was built and write the results; the summary, on the first process."""
    from rdm_solo import loggers
    from rdm_solo.data.images import DataError
    from rdm_solo.train import interruption, threads

    (folder / FAILED).unlink(missing_ok=True)  # of an earlier run in the same folder
    trainer = parts.trainer
    started = time.perf_counter()
    failed, interrupted = True, False
    at_interrupt = signal.getsignal(signal.SIGINT)
    try:
        with threads.limited(parts.threads):
            trainer.fit(
                parts.model,
                datamodule=parts.data,
                ckpt_path=parts.checkpoint,
                weights_only=True,
            )
        failed = False
    except SystemExit:  # how Lightning ends fit after Ctrl-C; it also ignores further ones
        if not trainer.interrupted:
            raise
        interrupted = True
    except Exception as error:
        answer = isinstance(error, (DataError, FloatingPointError))  # bad image; divergence
        why = str(error) if answer else failures.reason(error)
        if cause := failures.note(folder, why):
            raise AnotherProcessFailed(cause) from error
        raise
    finally:
        parts.children.let_go(trainer, failed)
        if trainer.is_global_zero:
            loggers.close_all(trainer.loggers, failed)
    seconds = time.perf_counter() - started
    summary: dict[str, Any] = {}
    if trainer.is_global_zero and (folder / METRICS).exists():
        from rdm_solo.train import closing

        summary = closing.write(cfg, folder, parts, seconds, interruption.REASON * interrupted)
    if interrupted:
        if trainer.is_global_zero:
            log.info(interruption.how_to_go_on(folder))
        signal.signal(signal.SIGINT, at_interrupt)
        raise KeyboardInterrupt
    return summary


def build(cfg: DictConfig, folder: Path, extra: Sequence[Any] = ()) -> Parts:
    """Everything a run needs; ValueErrors from here are answers to what the user typed."""
    if is_first_process():
        _say_what_begins(cfg, folder)
    from rdm_solo.runs import labels
    from rdm_solo.train import checks, datamodule, derived_values, resuming

    checks.check(cfg)
    dataset, views = instantiate(cfg.dataset.source), instantiate(cfg.dataset.views)
    datamodule.check_parts(dataset, views)
    full, derived = derived_values.derive(
        cfg, dataset, views.num_large_crops, views.num_small_crops
    )

    from rdm_solo import callbacks, loggers, methods
    from rdm_solo.callbacks import pictures, progress
    from rdm_solo.callbacks.advice import advice
    from rdm_solo.callbacks.collapse_watch import CollapseWatch
    from rdm_solo.callbacks.order import in_order
    from rdm_solo.cli import third_party
    from rdm_solo.lightning import pl
    from rdm_solo.methods import solo_learn
    from rdm_solo.train import logged_run, threads
    from rdm_solo.train.child_processes import Children
    from rdm_solo.train.interruption import SaysThatItStops

    third_party.silence_notices()
    pl.seed_everything(cfg.seed, workers=True, verbose=False)
    model = methods.build(full)
    number = threads.chosen(cfg, model.backbone, solo_learn.input_channels(full), views, derived)
    model = methods.prepare(model, cfg)
    model.labelled = dataset.labelled
    resume = Path(cfg.resume) if cfg.resume else None
    checkpoint = resuming.check_resume(cfg, resume) if resume else None
    if is_first_process():
        _announce(full, derived, views, number)

    expand = solo_learn.input_channels(full)
    if expand == dataset.train.channels:
        expand = None
    data = datamodule.DataModule(dataset, views, cfg.batch_size, cfg.seed, expand)
    chosen_loggers = cfg.get("logger") or {}
    loggers.check_packages(chosen_loggers)
    kept = folder / CHECKPOINT
    advise = functools.partial(advice, cfg=cfg, derived=derived)
    watch = CollapseWatch(advise, cfg.scheduler.warmup_epochs, **cfg.watch)
    started = Children()
    trainer = _trainer(
        cfg,
        derived,
        folder,
        in_order(
            [
                started,
                callbacks.WeightedKNN(**cfg.knn),
                callbacks.Diagnostics(folder, **cfg.diagnostics, resume=resume),
                watch,
                pictures.Pictures(**cfg.pictures, title=labels.title(cfg)),
                callbacks.EpochTable(folder, resume=resume),
                pictures.RankFigure(folder, cfg),
                SaysThatItStops(),
                *([progress.Progress()] if cfg.trainer.enable_progress_bar else []),
                pl.callbacks.ModelCheckpoint(
                    kept.parent, kept.stem, save_top_k=1, enable_version_counter=False
                ),
                *(instantiate(own) for own in (cfg.get("callbacks") or {}).values()),
                *extra,
            ]
        ),
    )
    if trainer.is_global_zero and not trainer.fast_dev_run:
        run_info = logged_run.run_info(cfg, folder, derived, checkpoint)
        trainer.loggers = loggers.open_all(chosen_loggers, run_info)
    return Parts(
        trainer=trainer,
        model=model,
        data=data,
        derived=derived,
        checkpoint=checkpoint,
        watch=watch,
        children=started,
        threads=number,
    )


def instantiate(node: Any) -> Any:
    """What the node's ``_target_`` makes; its own ValueError or ImportError where it refuses."""
    import hydra.utils
    from hydra.errors import InstantiationException

    try:
        return hydra.utils.instantiate(node)
    except InstantiationException as error:
        if isinstance(error.__cause__, (ValueError, ImportError)):
            raise error.__cause__ from None
        raise ValueError(next(filter(None, map(str.strip, str(error).splitlines())))) from error


def _trainer(
    cfg: DictConfig,
    derived: dict[str, Any],
    folder: Path,
    callbacks: list[Any],
) -> Any:
    from rdm_solo.lightning import pl
    from rdm_solo.train import derived_values

    options: dict[str, Any] = OmegaConf.to_container(cfg.trainer, resolve=True)  # type: ignore[assignment]
    if options["accelerator"] == "auto":  # Lightning would take Apple's, which has no float64
        options["accelerator"] = "cpu" if derived_values.on_cpu(cfg.trainer) else "gpu"
    if options["sync_batchnorm"] is None:
        on_gpu = options["accelerator"] != "cpu"
        options["sync_batchnorm"] = derived["processes"] > 1 and on_gpu
    options["enable_progress_bar"] = False  # Lightning's; ours is a callback
    defaults = {
        "max_epochs": cfg.max_epochs,
        "default_root_dir": folder,
        "logger": False,  # ours are opened once Lightning has accepted everything
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


def _say_what_begins(cfg: DictConfig, folder: Path) -> None:
    """The first line: before torch and Lightning load, which takes seconds, and before checks."""
    words = [cfg.method.name, cfg.filter.name, "" if cfg.p is None else f"p={cfg.p}"]
    shown = ", ".join([word for word in words if word not in ("", "none")] + [cfg.dataset.name])
    log.info(f"{shown}: {cfg.max_epochs} epochs, seed {cfg.seed}, in {folder}")


def _announce(cfg: DictConfig, derived: dict[str, Any], views: Any, threads: int | None) -> None:
    from rdm_solo.methods import solo_learn
    from rdm_solo.train import derived_values

    on_cpu = "" if threads is None else f", {threads} CPU thread{'s' * (threads > 1)}"
    log.info(f"solo-learn {solo_learn.version()}{on_cpu}")
    log.info(
        f"global batch {derived['global_batch']} = {cfg.batch_size} x {derived['processes']} "
        f"process(es) x {cfg.trainer.accumulate_grad_batches} accumulated; learning rate "
        f"{derived['base_lr']:g} x {derived['global_batch']}/256 = {derived['lr']:g}"
    )
    smallest = min(pipeline.crop_scale[0] for pipeline in views.pipelines)
    for sentence in derived_values.warnings(cfg, derived, smallest):
        log.warning(f"warning: {sentence}")
