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
    folder = _path(argv, "resume=")
    if folder is None:
        return list(argv)
    # Lightning adds the folder to the command of a run's other processes.
    run_dir = _path(argv, "hydra.run.dir=")
    if run_dir is not None and run_dir.resolve() != folder.resolve():
        raise UserError(f"resume={folder} already sets the folder: leave hydra.run.dir out.")
    removed = ("resume=", "hydra.run.dir=")
    passed = {}
    for option in argv:
        if option not in ("-m", "--multirun") and not option.startswith(removed):
            passed[_key(option)] = option

    if (folder / SWEEP).is_file():
        options = _sweep_options(folder, passed)
        return ["-m", *options, f"hydra.sweep.dir={in_quotes(folder.absolute())}"]
    if not (folder / OVERRIDES).is_file():
        raise UserError(f"resume={folder} has no {OVERRIDES}; pass the folder of a run.")
    merged = _merge(saved_config.overrides(folder), passed)
    if "max_epochs" in merged and WARM_UP not in merged:  # its default depends on max_epochs
        warm_up = OmegaConf.select(saved_config.run_config(folder), WARM_UP)
        merged[WARM_UP] = f"{WARM_UP}={warm_up}"
    options = list(merged.values())
    _check(options, passed)
    run_dir_option = f"hydra.run.dir={in_quotes(folder.absolute())}"
    return [*options, f"resume={in_quotes(folder)}", run_dir_option]


def _sweep_options(folder: Path, passed: dict[str, str]) -> list[str]:
    """Return a sweep's options after checking the config of each run."""
    ownership.refuse_links(folder)
    with files.prefix_errors(folder / SWEEP):
        recorded = files.read_yaml(folder, SWEEP)["hydra"]["overrides"]["task"]
    merged = _merge(saved_config.plain_overrides(recorded, folder / SWEEP), passed)
    options = list(merged.values())
    for run in sweep.runs_of(options):
        _check(run, passed)
    return options


def _merge(recorded: Sequence[str], passed: dict[str, str]) -> dict[str, str]:
    """Return recorded and passed options by key; a passed option replaces the recorded one."""
    options = {_key(option): option for option in recorded} | passed
    if "wandb" in options.get("logger", "") and "logger" not in passed:
        # A folder is not trusted to start uploads.
        options.setdefault("logger.wandb.offline", "logger.wandb.offline=true")
    return options


def _path(argv: Sequence[str], option: str) -> Path | None:
    """Return the path that an option sets, without Hydra's quotes; None if it is not passed."""
    values = [argument for argument in argv if argument.startswith(option)]
    if not values:
        return None
    text = values[-1].removeprefix(option).strip("'\"")
    return Path(text.replace("\\'", "'"))


def _key(option: str) -> str:
    return option.partition("=")[0].lstrip("+~")


def _check(options: Sequence[str], passed: dict[str, str]) -> None:
    """Raise UserError for recorded options that are not trusted; passed options are trusted."""
    from rdm_solo.runs import trust

    cfg: Any = compose("config", options)
    trust.check(cfg, list(cfg), list(passed))
