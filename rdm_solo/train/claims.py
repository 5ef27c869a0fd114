"""Lock a run's folder and decide whether the run starts, resumes, or has finished."""

import contextlib
import logging
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from rdm_solo.ground.distributed import broadcast_object, world_size
from rdm_solo.ground.errors import UserError
from rdm_solo.runs import checkpoints, files, ownership, saved_config, settings
from rdm_solo.runs.files import CONFIG, LOG, SUMMARY, writing
from rdm_solo.train import processes, shared_epochs
from rdm_solo.train.stopping import Stopped

log = logging.getLogger("rdm_solo")

# Options that may change when a run resumes, if the batch that filters see stays the same.
MAY_CHANGE = ("batch_size", "trainer.devices", "trainer.num_nodes")
MAX_STALLED = 2  # consecutive starts without a finished epoch


@dataclass(frozen=True)
class Start:
    """Where a run starts: at the beginning, at a checkpoint, or not at all."""

    checkpoint: Path | None = None
    epochs: int = 0  # finished epochs
    step: int = 0
    source: Path | None = None  # the run that trained these epochs, if it was another one
    finished_summary: dict[str, Any] | None = None  # None: the run has not finished


@contextlib.contextmanager
def claim(
    cfg: DictConfig, folder: Path, filter_batch: int, overrides: Sequence[str]
) -> Iterator[Start]:
    """Lock the run's folder in the body, and yield the start that rank 0 chose."""
    if processes.is_rank_zero():
        with contextlib.ExitStack() as stack:
            try:
                start = stack.enter_context(_lock(cfg, folder, filter_batch, overrides))
            except UserError as error:
                broadcast_object(error)
                raise
            yield broadcast_object(start)
    elif world_size() > 1:
        decision: Any = broadcast_object(None)
        if isinstance(decision, UserError):
            raise SystemExit(2)  # rank 0 prints the error
        yield decision
    else:  # no process group yet: Lightning started this process after rank 0 chose
        yield Start(checkpoint=next(iter(checkpoints.present(folder)), None))


@contextlib.contextmanager
def _lock(
    cfg: DictConfig, folder: Path, filter_batch: int, overrides: Sequence[str]
) -> Iterator[Start]:
    if cfg.overwrite and (folder / CONFIG).is_file():
        earlier = earlier_config(cfg, folder)
        if earlier is None or settings.differences(earlier, cfg):
            ownership.set_aside(folder)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with ownership.owned(folder):
        start = _start(cfg, folder, filter_batch)
        if start.finished_summary is not None:
            message = f"the run in {folder} has already finished its {start.epochs} epochs"
            if reason := start.finished_summary.get("stopped"):
                message = f"the run in {folder} ended early ({reason})"
            elif cfg.resume:
                message += "; to train longer, pass max_epochs=N"
            log.info(message)
            yield start
            return
        _record_start(folder, start.epochs, filter_batch)
        saved_config.write(folder, cfg, overrides)
        with writing(folder / LOG):
            handler = logging.FileHandler(folder / LOG, encoding="utf-8")
        logging.getLogger().addHandler(handler)
        try:
            yield start
        except Stopped as stop:
            if stop.number == signal.SIGINT:  # nobody requeues a run that Ctrl-C stopped
                ownership.write_owner(folder, epochs=start.epochs, filter_batch=filter_batch)
            raise
        finally:
            logging.getLogger().removeHandler(handler)
            with contextlib.suppress(OSError):  # the disk may be full
                handler.close()


def earlier_config(cfg: DictConfig, folder: Path) -> DictConfig | None:
    """Return the config of the folder's run; None if there is none or ``cfg`` replaces it.

    With overwrite=true only an unfinished run that was started in the same way is not replaced.
    """
    if not (folder / CONFIG).is_file():
        return None
    earlier = saved_config.run_config(folder)
    if cfg.overwrite:
        has_finished = files.read_object(folder, SUMMARY).get("finished")
        if has_finished or not earlier.get("overwrite"):
            return None
    return earlier


def _start(cfg: DictConfig, folder: Path, filter_batch: int) -> Start:
    """Return where to start; raise UserError if the folder holds a run that cannot resume."""
    if not (folder / CONFIG).is_file():
        source = None
        if cfg.share_epochs and not cfg.overwrite:
            source = shared_epochs.copy(cfg, folder)
        return _from_checkpoint(folder, source) if source else Start()
    earlier = saved_config.run_config(folder)
    names = [name for name in settings.differences(earlier, cfg) if name not in MAY_CHANGE]
    if cfg.resume and "max_epochs" in names:
        names.remove("max_epochs")
    if names:
        longer = ""
        if "max_epochs" in names:
            longer = f" To train it longer, pass only resume={folder} max_epochs=N."
        raise ownership.FolderTaken(
            f"{folder} holds a run that differs in {', '.join(names[:3])}: pass another "
            f"hydra.run.dir, or overwrite=true to rename that folder and start over.{longer}"
        )
    earlier_batch = ownership.last_owner(folder).get("filter_batch")
    if earlier_batch not in (None, filter_batch):
        raise UserError(
            f"the run in {folder} filters batches of {earlier_batch} rows, but this command sets "
            f"{filter_batch}: change batch_size or the number of processes."
        )
    summary = files.read_object(folder, SUMMARY)
    if summary.get("diverged"):
        raise UserError(
            f"the run in {folder} diverged in epoch {summary['diverged'].get('epoch')}: start "
            "over with other options and overwrite=true."
        )
    if not checkpoints.present(folder):
        return Start()
    start = _from_checkpoint(folder)
    if summary.get("finished") and (start.epochs >= cfg.max_epochs or summary.get("stopped")):
        return Start(epochs=start.epochs, finished_summary=summary)
    return start


def _from_checkpoint(folder: Path, source: Path | None = None) -> Start:
    path, content = checkpoints.latest(folder)
    step = int(content.get("global_step", 0))
    return Start(path, checkpoints.epochs(content), step, source)


def _record_start(folder: Path, epochs: int, filter_batch: int) -> None:
    """Record this start; raise UserError if too many starts in a row finished no epoch.

    Without this rule a job that always fails in the same epoch could be requeued forever.
    """
    owner = ownership.last_owner(folder)
    stalled = int(owner.get("stalled", -1)) + 1 if owner.get("epochs") == epochs else 0
    record = {"epochs": epochs, "filter_batch": filter_batch}
    if stalled >= MAX_STALLED:
        ownership.write_owner(folder, **record)  # resets the count, so the next start is allowed
        raise UserError(
            f"the last {stalled} starts of the run in {folder} finished no epoch: find the "
            f"cause in its {LOG}, then start it again."
        )
    ownership.write_owner(folder, **record, stalled=stalled)
