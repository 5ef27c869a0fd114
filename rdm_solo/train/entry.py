"""The command python -m rdm_solo.train: one run, or the runs of a sweep."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rdm_solo import cli
from rdm_solo.runs.files import CONFIG, FAILED, write_whole
from rdm_solo.train.parts import is_first_process
from rdm_solo.train.training import AnotherProcessFailed, build, fit

log = logging.getLogger("rdm_solo")

# Lightning starts the other processes of a DDP run with this process's command line. They read the
# composed config of the first one instead of composing (or, in a multirun, sweeping) again.
CONFIG_VARIABLE, FOLDER_VARIABLE = "RDM_SOLO_CONFIG", "RDM_SOLO_FOLDER"


def _job(cfg: DictConfig) -> None:
    """One Hydra job."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    folder = Path(HydraConfig.get().runtime.output_dir)
    before = dict(os.environ)
    os.environ[CONFIG_VARIABLE] = str(folder / CONFIG)
    os.environ[FOLDER_VARIABLE] = str(folder)
    try:
        _fit_warm_ups(cfg, folder)
        if HydraConfig.get().mode is RunMode.MULTIRUN:
            _run_of_a_sweep(cfg, folder)
        else:
            _run(cfg, folder)
    finally:
        # Lightning leaves its rank and port behind, by which the next job of a sweep would take
        # itself for a process that somebody else started.
        for name in set(os.environ) - set(before):
            del os.environ[name]
        _leave_process_group()


class _Answer(Exception):
    """One sentence for the user in place of a traceback; ``said``: by another process."""

    said = False


def _attempt(cfg: DictConfig, folder: Path) -> None:
    """Run; errors that answer the user are raised as :class:`_Answer`."""
    try:
        parts = build(cfg, folder)
    except (ValueError, ImportError) as error:
        raise _Answer(str(error)) from error
    from rdm_solo.data.images import DataError

    try:
        fit(cfg, folder, parts)
    except (DataError, FloatingPointError, AnotherProcessFailed) as error:
        answer = _Answer(str(error))
        answer.said = isinstance(error, AnotherProcessFailed)
        raise answer from error


def _run(cfg: DictConfig, folder: Path) -> None:
    """One run; where it fails, the status is 2 for an answer to the user."""
    try:
        _attempt(cfg, folder)
    except _Answer as answer:
        if answer.said:
            raise SystemExit(2) from None
        cli.fail(str(answer))


def _run_of_a_sweep(cfg: DictConfig, folder: Path) -> None:
    """One run of many: the others go on when it fails, and each reason is given once."""
    from rdm_solo.runs import failures

    try:
        _attempt(cfg, folder)
    except Exception as error:
        answer = isinstance(error, _Answer)
        reason = str(error) if answer else failures.reason(error)
        others = (path.parent for path in folder.parent.glob(f"*/{FAILED}"))
        earlier = {failures.of(other) for other in others if other != folder}
        failures.note(folder, reason)
        if not answer:
            log.error("the run failed; the sweep goes on", exc_info=error)
        elif not (error.said or reason in earlier):
            sys.stderr.write(f"error: {reason}\n")


def _leave_process_group() -> None:
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def _fit_warm_ups(cfg: DictConfig, folder: Path) -> None:
    """Where max_epochs was typed, shorten the recipe's warm-ups, in the saved config as well."""
    from hydra import compose
    from hydra.core.hydra_config import HydraConfig

    hydra = HydraConfig.get()
    typed = {option.partition("=")[0].lstrip("+~"): option for option in hydra.overrides.task}
    if "max_epochs" not in typed:
        return
    others = [option for name, option in typed.items() if name != "max_epochs"]
    recipe = compose(hydra.job.config_name, overrides=others)

    from rdm_solo.train.warm_ups import shorten_warm_ups

    for sentence in shorten_warm_ups(cfg, recipe.max_epochs, typed):
        log.info(sentence)
    saved = folder / CONFIG
    if saved.is_file() and is_first_process():
        write_whole(saved, OmegaConf.to_yaml(cfg))


def main() -> None:
    """The command."""
    try:
        if CONFIG_VARIABLE in os.environ and "LOCAL_RANK" in os.environ:
            cli.say_anything()
            cfg: Any = OmegaConf.load(os.environ[CONFIG_VARIABLE])
            _run(cfg, Path(os.environ[FOLDER_VARIABLE]))
        elif _resumes_in_place(sys.argv[1:]):
            from rdm_solo.train import resuming

            _run(*resuming.own_config(sys.argv[1:]))
        else:
            cli.command(_job, "config")
    except KeyboardInterrupt:
        raise SystemExit(130) from None  # as shells count a program that Ctrl-C ended


def _resumes_in_place(argv: list[str]) -> bool:
    """Whether a run is to go on in its own folder, by its own config.

    With a folder of its own, or in a sweep, it is a new run that starts from another's checkpoint.
    """
    if any(argument.startswith("-") for argument in argv):
        return False
    typed = [argument.partition("=")[0] for argument in argv if argument.partition("=")[2]]
    return "resume" in typed and "hydra.run.dir" not in typed
