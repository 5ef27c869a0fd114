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
    folder: Path | None = None
    run_dir: Path | None = None
    passed: dict[str, str] = {}
    for option in argv:
        key = _key(option)
        if key == "resume":
            folder = _path(option)
        elif key == "hydra.run.dir":  # Lightning adds it for a run's other processes
            run_dir = _path(option)
        elif key not in ("-m", "--multirun"):
            passed[key] = option
    if folder is None:
        return list(argv)
    if run_dir is not None and run_dir.resolve() != folder.resolve():
        raise UserError(f"resume={folder} already sets the folder: leave hydra.run.dir out.")

    path = in_quotes(folder.absolute())
    if (folder / SWEEP).is_file():
        ownership.refuse_links(folder)
        with files.prefix_errors(folder / SWEEP):
            task = files.read_yaml(folder, SWEEP)["hydra"]["overrides"]["task"]
        merged = _merge(saved_config.plain_overrides(task, folder / SWEEP), passed)
        for options in sweep.runs_of(list(merged.values())):
            _check(options, passed)
        return ["-m", *merged.values(), f"hydra.sweep.dir={path}"]

    if not folder.is_dir():
        raise UserError(f"resume={folder}: there is no such folder.")
    if not (folder / OVERRIDES).is_file():
        raise UserError(f"resume={folder} has no {OVERRIDES}; pass the folder of a run.")
    merged = _merge(saved_config.overrides(folder), passed)
    if "max_epochs" in merged and WARM_UP not in merged:  # its default depends on max_epochs
        warm_up = OmegaConf.select(saved_config.run_config(folder), WARM_UP)
        merged[WARM_UP] = f"{WARM_UP}={warm_up}"
    _check(list(merged.values()), passed)
    return [*merged.values(), f"resume={in_quotes(folder)}", f"hydra.run.dir={path}"]


def _key(option: str) -> str:
    return option.partition("=")[0].lstrip("+~")


def _path(option: str) -> Path:
    """Return the path in an option, without Hydra's quotes."""
    _, _, value = option.partition("=")
    return Path(value.strip("'\"").replace("\\'", "'"))


def _merge(recorded: Sequence[str], passed: dict[str, str]) -> dict[str, str]:
    """Return recorded and passed options by key; a passed option replaces the recorded one."""
    options = {_key(option): option for option in recorded} | passed
    if "wandb" in options.get("logger", "") and "logger" not in passed:
        # A folder is not trusted to start uploads.
        options.setdefault("logger.wandb.offline", "logger.wandb.offline=true")
    return options


def _check(options: Sequence[str], passed: dict[str, str]) -> None:
    """Raise UserError for recorded options that are not trusted; passed options are trusted."""
    from rdm_solo.runs import trust

    cfg: Any = compose("config", options)
    trust.check(cfg, list(cfg), list(passed))
