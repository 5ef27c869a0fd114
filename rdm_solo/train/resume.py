"""Expand ``resume=FOLDER`` into the recorded options of its run or sweep."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rdm_solo.cli.arguments import compose, in_quotes
from rdm_solo.ground.errors import UserError
from rdm_solo.runs import files, ownership, saved_config
from rdm_solo.runs.files import OVERRIDES, SWEEP
from rdm_solo.train import sweep

WARM_UP = "scheduler.warmup_epochs"


def expand(argv: Sequence[str]) -> list[str]:
    """Replace ``resume=FOLDER`` with the folder's recorded options and its path.

    Options that were passed as well override the recorded options. For a sweep's folder, the whole
    sweep is submitted again: unfinished runs resume and finished runs are left alone.
    """
    resumes = [option for option in argv if option.startswith("resume=")]
    if not resumes:
        return list(argv)
    folder = Path(_value(resumes[-1]))
    passed = []
    for option in dict.fromkeys(argv):
        if option.startswith("hydra.run.dir="):  # Lightning adds it for a run's other processes
            if Path(_value(option)).resolve() != folder.resolve():
                raise UserError(f"{resumes[-1]} already sets the folder: leave hydra.run.dir out.")
        elif option not in ("-m", "--multirun") and not option.startswith("resume="):
            passed.append(option)

    if (folder / SWEEP).is_file():
        return ["-m", *_sweep(folder, passed), f"hydra.sweep.dir={in_quotes(folder.absolute())}"]
    if not (folder / OVERRIDES).is_file():
        raise UserError(f"resume={folder} has no {OVERRIDES}; pass the folder of a run.")
    options = _merged(saved_config.overrides(folder), passed)
    keys = [_key(option) for option in options]
    if "max_epochs" in keys and WARM_UP not in keys:  # its default depends on max_epochs
        warm_up = OmegaConf.select(saved_config.run_config(folder), WARM_UP)
        options.append(f"{WARM_UP}={warm_up}")
    _check(options, passed)
    run_dir = f"hydra.run.dir={in_quotes(folder.absolute())}"
    return [*options, f"resume={in_quotes(folder)}", run_dir]


def _sweep(folder: Path, passed: Sequence[str]) -> list[str]:
    """Return a sweep's options after checking the config of each run."""
    ownership.refuse_links(folder)
    with files.prefix_errors(folder / SWEEP):
        recorded = files.read_yaml(folder, SWEEP)["hydra"]["overrides"]["task"]
    arguments = _merged(saved_config.plain_overrides(recorded, folder / SWEEP), passed)
    for options in sweep.runs_of(arguments):
        _check(options, passed)
    return arguments


def _merged(recorded: Sequence[str], passed: Sequence[str]) -> list[str]:
    """Merge recorded and passed options; a passed option replaces one with the same key."""
    options = {_key(option): option for option in (*recorded, *passed)}
    passed_keys = [_key(option) for option in passed]
    if "wandb" in options.get("logger", "") and "logger" not in passed_keys:
        # A folder is not trusted to start uploads.
        options.setdefault("logger.wandb.offline", "logger.wandb.offline=true")
    return list(options.values())


def _value(option: str) -> str:
    value = option.partition("=")[2].strip("'\"")
    return value.replace("\\'", "'")


def _key(option: str) -> str:
    return option.partition("=")[0].lstrip("+~")


def _check(options: Sequence[str], passed: Sequence[str]) -> None:
    """Raise UserError for recorded options that are not trusted; passed options are trusted."""
    from rdm_solo.runs import trust

    cfg: Any = compose("config", options)
    trust.check(cfg, list(cfg), [_key(option) for option in passed])
