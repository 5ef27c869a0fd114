"""The command python -m rdm_solo.train: one run, or the runs of a sweep."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from rdm_solo import cli
from rdm_solo.runs.files import CONFIG, write_whole
from rdm_solo.train.training import is_first_process, run

log = logging.getLogger("rdm_solo")

# Lightning starts the other processes of a DDP run with this process's command line. They read the
# composed config of the first one instead of composing (or, in a multirun, sweeping) again.
CONFIG_VARIABLE, FOLDER_VARIABLE = "RDM_SOLO_CONFIG", "RDM_SOLO_FOLDER"


def _job(cfg: DictConfig) -> None:
    """One Hydra job."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    from rdm_solo.train import sweep

    folder = Path(HydraConfig.get().runtime.output_dir)
    before = dict(os.environ)
    os.environ[CONFIG_VARIABLE] = str(folder / CONFIG)
    os.environ[FOLDER_VARIABLE] = str(folder)
    try:
        _fit_warm_ups(cfg, folder)
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
            run(OmegaConf.load(os.environ[CONFIG_VARIABLE]), Path(os.environ[FOLDER_VARIABLE]))  # type: ignore[arg-type]
        elif _resumes_in_place(sys.argv[1:]):
            from rdm_solo.train import resuming

            resuming.go_on(sys.argv[1:])
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
