"""The command python -m rdm_solo.train: one run, or the runs of a sweep."""

import contextlib
import logging
import os
import sys
from collections.abc import Sequence
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from rdm_solo import cli
from rdm_solo.cli import torchrun
from rdm_solo.messages import CannotWrite
from rdm_solo.runs import earlier_run, failures, ownership, reading
from rdm_solo.runs.failures import AnotherProcessFailed
from rdm_solo.runs.files import CONFIG, FAILED, HYDRA, LOG, OVERRIDES, write_whole, writing
from rdm_solo.runs.ownership import FolderTaken
from rdm_solo.runs.reading import Unreadable
from rdm_solo.train import environment, run_folder, signals, sweep, warm_ups
from rdm_solo.train.training import build, fit, is_first_process, owned

log = logging.getLogger("rdm_solo")

MOST_HYDRA = 2**20  # bytes of Hydra's own config


def main() -> None:
    """The command."""
    try:
        with signals.handled():
            _main()
    except KeyboardInterrupt as error:
        stopped = error if isinstance(error, signals.Stopped) else signals.Stopped()
        if not stopped.told and is_first_process():
            print(f"{stopped}: the command ends", flush=True)
        raise SystemExit(stopped.status) from None


def _main() -> None:
    of_sweep = sweep.of_this_process() is not None
    signals.end_with(os.environ.pop(environment.PARENT, None))
    if of_sweep:
        cli.log_to_terminal()
    if environment.CONFIG in os.environ and (of_sweep or "LOCAL_RANK" in os.environ):
        cli.say_anything()
        cfg: Any = OmegaConf.load(os.environ[environment.CONFIG])
        folder = Path(os.environ[environment.FOLDER])
    elif not _resumes_in_place(sys.argv[1:]):
        _register_launchers()
        cli.command(_job, "config")
        return
    else:
        from rdm_solo.train import resuming

        if not of_sweep and (found := resuming.sweep_in(sys.argv[1:])):
            from rdm_solo.train.launchers import unfinished

            unfinished.run(found, sys.argv[1:])
            return
        cfg, folder = resuming.own_config(sys.argv[1:], is_first_process())
    # Of a run's processes the first alone answers for it.
    one_of_many = of_sweep and is_first_process()
    before = failures.mark(folder)
    refused = _run(cfg, folder, one_of_many, _notes_of_the_plan())
    if one_of_many and (refused or failures.mark(folder) not in (None, before)):
        raise SystemExit(1)


def _register_launchers() -> None:
    """Let Hydra know our launchers: its search does not find them where the package is installed as
    a link to its source (``pip install -e``, and uv in a clone)."""
    from hydra.core.plugins import Plugins

    from hydra_plugins.rdm_solo_launchers import ByName

    Plugins.instance().register(ByName)


def _resumes_in_place(argv: list[str]) -> bool:
    """Whether a run, or a sweep, is to go on in its own folder, by its own config.

    With a folder of its own, or in a sweep, it is a new run that starts from another's checkpoint.
    """
    if any(argument.startswith("-") for argument in argv):
        return False
    typed = [argument.partition("=")[0] for argument in argv if argument.partition("=")[2]]
    return "resume" in typed and "hydra.run.dir" not in typed


def _job(cfg: DictConfig) -> str | None:
    """One Hydra job; of one of a sweep's, the reason of a failure that its folder does not have."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    many = hydra.mode is RunMode.MULTIRUN
    if not many and cfg.resume and Path(cfg.resume).resolve() == folder.resolve():
        cli.fail(
            f"resume={cfg.resume} alone goes on in that folder, by its own config; leave "
            "hydra.run.dir out, or name another folder by it."
        )
    with open_dict(cfg):
        launcher = cfg.pop("launcher", None)
    if not many and launcher and launcher.name != "basic":
        cli.fail(
            f"launcher={launcher.name} starts the runs of a sweep: add -m and values to sweep over "
            "such as p=-0.5,-0.3, or leave it out."
        )
    given = many or run_folder.typed(HydraConfig.instance().cfg, "run.dir")
    before = dict(os.environ)
    try:
        with contextlib.ExitStack() as stack:
            folder = _agreed_folder(folder, given, stack)
            os.environ[environment.CONFIG] = str(folder / CONFIG)
            os.environ[environment.FOLDER] = str(folder)
            if many:
                os.environ[environment.SWEEP] = hydra.sweep.dir
            notes = [*_notes_of_the_plan(), *warm_ups.fit(cfg)]
            return _run(cfg, folder, one_of_many=many, notes=notes)
    except KeyboardInterrupt:
        if many:
            sweep.tell(Path(hydra.sweep.dir), stopped=True)
        raise
    finally:
        # Lightning leaves its rank and port behind, by which the next job of a sweep would take
        # itself for a process that somebody else started.
        for name in set(os.environ) - set(before):
            del os.environ[name]
        import torch.distributed as dist

        if dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()


def _notes_of_the_plan() -> list[str]:
    """How the sweep has changed this run's config, in sentences, for its first process alone."""
    return os.environ.pop(environment.NOTES, "").splitlines()


def _agreed_folder(folder: Path, given: bool, stack: contextlib.ExitStack) -> Path:
    """The run's folder, which the first of its processes chooses; a default name is a free one.

    The processes that Lightning starts read it from the environment, those of ``srun`` compute the
    same, and those of torchrun, each of which composes the config by itself, learn it here.
    """
    if torchrun.started() and not is_first_process():
        return Path(torchrun.learn())
    before = torchrun.folder_before()
    if before is not None:
        folder = Path(before)
    elif not given and is_first_process():
        with cli.sentences():
            folder = stack.enter_context(earlier_run.new_folder(folder))
    if torchrun.started():
        torchrun.tell(str(folder))
    return folder


def _run(
    cfg: DictConfig, folder: Path, one_of_many: bool = False, notes: Sequence[str] = ()
) -> str | None:
    """One run. Where it fails with an answer to the user, the status is 2; a sweep goes on, and
    gets the reason back where none could be left in the folder: it is another run's, or cannot be
    written.

    The folder gets its config and log once the run is built: a refused command leaves an earlier
    run's as they are. The folders of a sweep are new, and name the runs that were refused.
    """
    answers: tuple[type[Exception], ...] = (ValueError, ImportError, CannotWrite)
    ours, aside, before = False, None, failures.mark(folder)
    early = MemoryHandler(1000, flushOnClose=False)  # of train.log
    logging.getLogger().addHandler(early)
    try:
        if is_first_process():
            run_folder.end_what_was_cut_short(folder)
            for sentence in notes:
                log.info(sentence)
        ours = not earlier_run.holds_run(folder)
        if one_of_many:
            ownership.check_free(folder)
            if ours:
                (folder / FAILED).unlink(missing_ok=True)  # of an earlier start
                _write_config(cfg, folder)
        parts = build(cfg, folder)
        from rdm_solo.data.images import DataError

        with owned(parts) as aside:
            ours = True
            if is_first_process():
                _write_config(cfg, folder)
                _open_log(folder, early)
                if told := os.environ.pop(environment.TELL, None):
                    Path(told).write_text(str(folder.absolute()), encoding="utf-8")
            answers = (
                *(DataError, FloatingPointError, CannotWrite, Unreadable),
                AnotherProcessFailed,
            )
            fit(parts)
    except run_folder.Finished as finished:
        log.info(str(finished))
    except Exception as error:
        ours = ours and not (aside and aside.came_back)
        if one_of_many and (isinstance(error, FolderTaken) or not ours):
            sys.stderr.write(f"error: {error}\n")
            return f"refused: {error}"
        if one_of_many:
            reason = _leave_reason(folder, error, isinstance(error, answers))
            if failures.mark(folder) in (None, before):  # nothing can be written there
                return f"failed: {folder.name}: {reason}"
        elif isinstance(error, AnotherProcessFailed):
            raise SystemExit(2) from None
        elif isinstance(error, answers):
            cli.fail(str(error))
        else:
            raise
    return None


def _write_config(cfg: DictConfig, folder: Path) -> None:
    """The config as it is now, and Hydra's."""
    from hydra.core.hydra_config import HydraConfig

    saved: Any = cfg.copy()
    OmegaConf.update(saved, "overwrite", False, force_add=True)  # which earlier versions lack
    if cfg.resume == str(folder):
        saved.resume = None
    run_folder.write_config(folder, config=saved)
    if HydraConfig.initialized():
        overrides = HydraConfig.get().overrides.task
        run_folder.write_config(folder, hydra=HydraConfig.instance().cfg, overrides=overrides)
    elif environment.CONFIG in os.environ:  # composed by a sweep's launcher
        planned = Path(os.environ[environment.CONFIG]).parent.parent
        for name in (HYDRA, OVERRIDES):
            if (planned / name).is_file():
                write_whole(folder / name, reading.read_bytes(planned, name, MOST_HYDRA))


class _Log(logging.FileHandler):
    """``train.log``; where the disk is full, one sentence in place of a traceback for each line."""

    def handleError(self, record: logging.LogRecord) -> None:
        logging.getLogger().removeHandler(self)
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        sys.stderr.write(f"warning: {self.baseFilename} cannot be written: {error.strerror}\n")


def _open_log(folder: Path, early: MemoryHandler) -> None:
    """Log to the run's folder from here on, after what has been said already."""
    with writing(folder / LOG):
        file = _Log(folder / LOG)
    early.setTarget(file)
    early.flush()
    logging.getLogger().removeHandler(early)
    logging.getLogger().addHandler(file)


def _leave_reason(folder: Path, error: Exception, answer: bool) -> str:
    """Leave in the folder why this run of a sweep failed, and print it unless another run has."""
    reason = str(error) if answer else failures.reason(error)
    others = [path.parent for path in folder.parent.glob(f"*/{FAILED}") if path.parent != folder]
    logged = reason in map(failures.of, others) or isinstance(error, AnotherProcessFailed)
    failures.note(folder, reason)
    if not answer:
        log.error("the run failed; the sweep goes on", exc_info=error)
    elif not logged:
        sys.stderr.write(f"error: {reason}\n")
    return reason
