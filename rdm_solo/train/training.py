"""One training run: config in, a trained encoder and its folder out."""

import contextlib
import functools
import logging
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from rdm_solo.cli import torchrun
from rdm_solo.cli.answers import naming_what_the_config_lacks
from rdm_solo.messages import CannotWrite
from rdm_solo.runs import earlier_run, failures, ownership
from rdm_solo.runs.files import CHECKPOINT, FAILED, METRICS, SIGNALS, writing
from rdm_solo.runs.reading import Unreadable
from rdm_solo.train import signals

if TYPE_CHECKING:
    from rdm_solo.callbacks.divergence import DivergenceGuard
    from rdm_solo.train.child_processes import Children
    from rdm_solo.train.derived_values import Derived

log = logging.getLogger("rdm_solo")

# Of torchrun, Lightning and srun, in the order in which Lightning asks.
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "SLURM_PROCID")


def is_first_process() -> bool:
    """Whether this is the first process; before the Trainer is built, its launcher has said so."""
    given = (os.environ[name] for name in RANK_VARIABLES if name in os.environ)
    return next(given, "0") == "0"


@dataclass(frozen=True)
class Parts:
    """Everything that a run is made of."""

    folder: Path
    trainer: Any
    model: Any
    data: Any
    recorded: dict[str, Any]  # of the settings, in summary.json
    checkpoint: Path | None  # where a resumed run goes on
    children: "Children"
    guard: "DivergenceGuard"
    threads: int | None  # of the CPU; None: as many as torch takes
    open_loggers: Callable[[], list[Any]]  # in the run's folder, once it is owned
    overwrite: bool  # whether an earlier run in the folder is removed first


def run(cfg: DictConfig, folder: Path, extra: Sequence[Any] = ()) -> dict[str, Any]:
    """One run: config in, dataset, method, trainer built, fit, results written to the folder.

    ``extra`` callbacks come after those of the config. Raises ``ValueError`` or ``ImportError``
    where the config cannot be run, ``DataError`` where an image cannot be read, ``Diverged`` where
    training diverges, and ``Stopped``, a KeyboardInterrupt, after Ctrl-C or SIGTERM.
    """
    parts = build(cfg, folder, extra)
    with owned(parts):
        return fit(parts)


@contextlib.contextmanager
def owned(parts: Parts) -> Iterator[earlier_run.SetAside | None]:
    """Own the run's folder, and open the loggers there; ValueError where another run goes on.

    The first process alone writes there, so it owns it. The body gets what is written over, if any.
    """
    trainer, folder = parts.trainer, parts.folder
    if not trainer.is_global_zero:
        yield None
        return
    filter_batch = parts.recorded["derived"]["filter_batch"]
    with contextlib.ExitStack() as stack:
        before = stack.enter_context(ownership.owned(folder, filter_batch=filter_batch))
        aside = earlier_run.SetAside(folder, before) if parts.overwrite else None
        if aside:
            stack.enter_context(aside)
        if not trainer.fast_dev_run:
            with writing(folder):
                trainer.loggers = parts.open_loggers()
        yield aside


@signals.handled()
def fit(parts: Parts) -> dict[str, Any]:
    """Train what was built and write the results; the summary, on the first process."""
    from rdm_solo import loggers
    from rdm_solo.data.images import DataError
    from rdm_solo.train import closing, garbage, threads

    folder, trainer = parts.folder, parts.trainer
    (folder / FAILED).unlink(missing_ok=True)  # of an earlier run in the same folder
    started = time.perf_counter()
    failed, interrupted, diverged = True, False, None
    at_interrupt = signal.getsignal(signal.SIGINT)
    try:
        with threads.limited(parts.threads), garbage.collected_soon():
            signals.check()
            _join_processes(trainer)
            trainer.fit(
                parts.model,
                datamodule=parts.data,
                ckpt_path=parts.checkpoint,
                weights_only=True,
            )
        failed = False
    except SystemExit:  # how Lightning ends fit after a signal; it also ignores further Ctrl-C
        if not trainer.interrupted:
            raise
        interrupted = True
    except FloatingPointError as error:
        diverged = parts.guard.error(trainer, error)
        noted = failures.note(folder, str(diverged))
    except Exception as raised:
        error = _of_checkpoint(parts.checkpoint, raised) or raised
        answer = isinstance(error, (DataError, CannotWrite, Unreadable))
        why = str(error) if answer else failures.reason(error)
        # A library may turn the signal into an error of its own.
        own = None if answer else signals.came()
        if own is not None:
            log.info(f"{SIGNALS[own]}: the run stops ({why})")
        # A closed connection says nothing of why the other process has ended.
        elif isinstance(raised, RuntimeError) and (sent := parts.children.stopped_by()):
            signals.take(sent)
            log.info(f"{SIGNALS[sent]} to another process of the run: it stops")
        else:
            if cause := failures.note(folder, why):
                raise failures.AnotherProcessFailed(cause) from raised
            if error is raised:
                raise
            raise error from raised
        interrupted = True
    finally:
        parts.children.let_go(trainer, failed)
        if trainer.is_global_zero:
            with signals.waiting():
                loggers.close_all(trainer.loggers, failed)
    seconds = time.perf_counter() - started
    summary: dict[str, Any] = {}
    stopped = signals.Stopped(signals.received(), told=True)
    if trainer.is_global_zero and (diverged or (folder / METRICS).exists()):
        why = str(stopped) if interrupted else ""
        with signals.waiting():
            summary = closing.write(folder, trainer, parts.recorded, seconds, why, diverged)
    if diverged:
        raise failures.AnotherProcessFailed(noted) if noted else diverged
    if interrupted:
        if trainer.is_global_zero:
            log.info(closing.how_to_go_on(folder))
        signal.signal(signal.SIGINT, at_interrupt)
        raise stopped
    signals.check()  # one that came while the files were written
    return summary


def _join_processes(trainer: Any) -> None:
    """Under torchrun, connect the run's processes; elsewhere Lightning does."""
    if torchrun.started() and trainer.world_size > 1:
        device = trainer.strategy.root_device
        if device.type == "cuda":
            import torch

            torch.cuda.set_device(device)
        torchrun.join("nccl" if device.type == "cuda" else "gloo")


def _of_checkpoint(path: Path | None, error: Exception) -> Unreadable | None:
    """What is wrong with the checkpoint to go on from, where Lightning has failed to take it up."""
    frames = traceback.extract_tb(error.__traceback__)
    if path is None or not any(Path(f.filename).stem == "checkpoint_connector" for f in frames):
        return None
    return Unreadable(path, f"the run cannot go on from it: {failures.reason(error)}")


@naming_what_the_config_lacks()
def build(cfg: DictConfig, folder: Path, extra: Sequence[Any] = ()) -> Parts:
    """Everything a run needs; ValueErrors from here are answers to what the user typed."""
    first = is_first_process()
    if first:
        _say_what_begins(cfg, folder)
    from rdm_solo.runs import labels
    from rdm_solo.train import checks, datamodule, derived_values, resuming, run_folder

    checks.check(cfg)
    if first:
        ownership.check_free(folder)
    overwrite = run_folder.check(cfg, folder, first)
    resume = Path(cfg.resume) if cfg.resume else None
    checkpoint, step, epochs = None, 0, 0
    if resume and first:
        checkpoint, step, epochs = resuming.check_resume(cfg, resume)
    elif resume:
        checkpoint = resume / CHECKPOINT  # Lightning asks the first process which one it is
    dataset, views = datamodule.made(cfg)
    full, derived = derived_values.derive(
        cfg, dataset, views.num_large_crops, views.num_small_crops
    )

    from rdm_solo import loggers, methods
    from rdm_solo.callbacks import SkippedImages
    from rdm_solo.callbacks.advice import advice, divergence_advice, warnings_before
    from rdm_solo.callbacks.divergence import DivergenceGuard
    from rdm_solo.cli import third_party
    from rdm_solo.data.images import Files
    from rdm_solo.lightning import pl
    from rdm_solo.methods import backbones
    from rdm_solo.train import logged_run, threads
    from rdm_solo.train.child_processes import Children
    from rdm_solo.train.trainer import make_callbacks, make_trainer

    third_party.silence_notices()
    pl.seed_everything(cfg.seed, workers=True, verbose=False)
    model = methods.build(full)
    channels = backbones.input_channels(full)
    number = threads.chosen(cfg, model.backbone, channels, views, derived.processes)
    model = methods.prepare(model, cfg)
    model.labelled = dataset.labelled
    if first:
        _announce(cfg, derived, number)
        smallest_crop = min(pipeline.crop_scale[0] for pipeline in views.pipelines)
        for sentence in warnings_before(cfg, derived.filter_batch, smallest_crop):
            log.warning(f"warning: {sentence}")

    expand = None if channels == dataset.train.channels else channels
    data = datamodule.DataModule(dataset, views, cfg.batch_size, cfg.seed, expand)
    chosen_loggers = cfg.get("logger") or {}
    loggers.check_packages(chosen_loggers)
    listed = make_callbacks(
        cfg.get("callbacks") or {},
        folder=folder,
        resume=resume,
        cfg=cfg,
        title=labels.title(cfg),
        advise=functools.partial(advice, cfg=cfg, filter_batch=derived.filter_batch),
    )
    foreign = [c for c in [*listed, *extra] if not type(c).__module__.startswith("rdm_solo.")]
    model.charted = bool(chosen_loggers or foreign)
    children = Children()
    guard = DivergenceGuard(functools.partial(divergence_advice, cfg=cfg, lr=derived.lr))
    own: list[Any] = [guard, children]
    if any(isinstance(p, Files) and p.reading.skip_broken for p in (dataset.train, dataset.val)):
        own.append(SkippedImages(folder))
    trainer = make_trainer(cfg, derived.processes, folder, [*own, *listed, *extra])

    def open_loggers() -> list[Any]:
        run_info = logged_run.run_info(cfg, folder, derived, step, epochs)
        return loggers.open_all(chosen_loggers, run_info)

    config: Any = OmegaConf.to_container(cfg, resolve=True)
    return Parts(
        folder=folder,
        trainer=trainer,
        model=model,
        data=data,
        recorded={"derived": asdict(derived), "seed": cfg.seed, "config": config},
        checkpoint=checkpoint,
        children=children,
        guard=guard,
        threads=number,
        open_loggers=open_loggers,
        overwrite=overwrite,
    )


def _say_what_begins(cfg: DictConfig, folder: Path) -> None:
    """The first line: before torch and Lightning load, which takes seconds, and before checks."""
    words = [cfg.method.name, cfg.filter.name, "" if cfg.p is None else f"p={cfg.p}"]
    shown = ", ".join(str(w) for w in [*words, cfg.dataset.name] if w not in ("", "none"))
    log.info(f"{shown}: {cfg.max_epochs} epochs, seed {cfg.seed}, in {folder}")


def _announce(cfg: DictConfig, derived: "Derived", threads: int | None) -> None:
    from rdm_solo.methods import solo_learn

    on_cpu = "" if threads is None else f", {threads} CPU thread{'s' * (threads > 1)}"
    log.info(f"solo-learn {solo_learn.version()}{on_cpu}")
    log.info(
        f"global batch {derived.global_batch} = {cfg.batch_size} x {derived.processes} "
        f"process(es) x {cfg.trainer.accumulate_grad_batches} accumulated; learning rate "
        f"{derived.base_lr:g} x {derived.global_batch}/256 = {derived.lr:g}"
    )
