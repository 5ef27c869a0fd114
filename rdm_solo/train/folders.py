"""A run's folder: a new one, or one in which the same command resumes."""

import contextlib
import datetime
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from rdm_solo.distributed import broadcast_object, world_size
from rdm_solo.messages import UserError
from rdm_solo.runs import checkpoints, files, ownership, saved_config, settings
from rdm_solo.runs.files import CONFIG, LOG, SUMMARY, writing
from rdm_solo.train import processes

log = logging.getLogger("rdm_solo")

# Options of a setting that may change when a run resumes. The batch that filters see may not.
PROCESSES = ("batch_size", "trainer.devices", "trainer.num_nodes")
MAX_STALLED = 2  # starts in a row that add no epoch


@dataclass(frozen=True)
class Start:
    """Where a run starts: at the beginning, at a checkpoint, or not at all."""

    checkpoint: Path | None = None
    epochs: int = 0  # that are done
    step: int = 0
    finished: dict[str, Any] | None = None  # the summary of a run with nothing left to do


@contextlib.contextmanager
def claimed(
    cfg: DictConfig, folder: Path, filter_batch: int, overrides: Sequence[str]
) -> Iterator[Start]:
    """Own the run's folder while the body trains; its first process decides where to start."""
    if processes.is_first():
        with contextlib.ExitStack() as stack:
            try:
                start = stack.enter_context(_owned(cfg, folder, filter_batch, overrides))
            except UserError as error:
                broadcast_object(error)
                raise
            yield broadcast_object(start)
    elif world_size() > 1:
        decision: Any = broadcast_object(None)
        if isinstance(decision, UserError):
            raise SystemExit(2)
        yield decision
    else:  # Lightning has started this process, after the first one decided
        yield Start(checkpoint=next(iter(checkpoints.present(folder)), None))


@contextlib.contextmanager
def _owned(
    cfg: DictConfig, folder: Path, filter_batch: int, overrides: Sequence[str]
) -> Iterator[Start]:
    if cfg.overwrite and (folder / CONFIG).is_file() and not _is_unfinished(cfg, folder):
        with ownership.owned(folder), writing(folder):
            old = folder.rename(f"{folder}.old-{datetime.datetime.now():%Y-%m-%d_%H-%M-%S}")
            log.info(f"the earlier run is kept in {old}")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with ownership.owned(folder):
        start = _start(cfg, folder, filter_batch)
        if start.finished is not None:
            yield start
            return
        _sign(folder, start.epochs, filter_batch)
        saved_config.write(folder, cfg, overrides)
        with _logged_to(folder / LOG):
            yield start


def _is_unfinished(cfg: DictConfig, folder: Path) -> bool:
    """Return whether the folder holds an unfinished run that this very command started."""
    earlier = saved_config.run_config(folder)
    same = earlier.get("overwrite") and not settings.differences(earlier, cfg)
    return bool(same) and not _summary(folder).get("finished")


def _summary(folder: Path) -> dict[str, Any]:
    try:
        return files.read_object(folder, SUMMARY)
    except FileNotFoundError:
        return {}


def _start(cfg: DictConfig, folder: Path, filter_batch: int) -> Start:
    """Return where a run in that folder starts; UserError if it holds a run of another config."""
    if cfg.resume and Path(cfg.resume).resolve() != folder.resolve():
        raise UserError(f"resume={cfg.resume} resumes in that folder: leave hydra.run.dir out.")
    if not (folder / CONFIG).is_file():
        return Start()
    earlier = saved_config.run_config(folder)
    may_differ = {*PROCESSES, "max_epochs"} if cfg.resume else {*PROCESSES}
    names = [name for name in settings.differences(earlier, cfg) if name not in may_differ]
    if names:
        raise ownership.FolderTaken(
            f"{folder} holds a run with another {', '.join(names[:3])}: give another "
            "hydra.run.dir, or overwrite=true to rename that folder and start over."
        )
    rows = ownership.last_owner(folder).get("filter_batch")
    if rows not in (None, filter_batch):
        raise UserError(
            f"the run in {folder} filters {rows} rows at once, and this command {filter_batch}: "
            "change batch_size or the number of processes."
        )
    summary = _summary(folder)
    if summary.get("diverged"):
        raise UserError(
            f"the run in {folder} diverged in epoch {summary['diverged'].get('epoch')}: start "
            "over with other options and overwrite=true."
        )
    if not checkpoints.present(folder):
        return Start()
    path, content = checkpoints.latest(folder)
    done = checkpoints.epochs(content)
    if summary.get("finished") and (done >= cfg.max_epochs or summary.get("stopped")):
        return Start(finished=summary)
    return Start(path, done, int(content.get("global_step", 0)))


def _sign(folder: Path, epochs: int, filter_batch: int) -> None:
    """Sign the folder; UserError if too many starts in a row have added no epoch.

    Without this rule a job that fails in its first epoch could be requeued forever.
    """
    owner = ownership.last_owner(folder)
    stalled = int(owner.get("stalled", -1)) + 1 if owner.get("epochs") == epochs else 0
    facts = {"epochs": epochs, "filter_batch": filter_batch}
    if stalled >= MAX_STALLED:
        ownership.sign(folder, **facts)  # another try is allowed
        raise UserError(
            f"the last {stalled} starts of the run in {folder} have finished no epoch: see what "
            f"stops it ({LOG} there), then start it again."
        )
    ownership.sign(folder, **facts, stalled=stalled)


@contextlib.contextmanager
def _logged_to(path: Path) -> Iterator[None]:
    with writing(path):
        handler = logging.FileHandler(path, encoding="utf-8")
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()
