"""Write and read the config in a run's folder, and format a run's title.

References between options (``${dataset.root}``) are kept, so that changing an option also changes
those that refer to it. Other resolvers, such as environment variables, are written as values and
refused when read, because a folder may come from a stranger.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rdm_solo.ground.errors import UserError, first_line
from rdm_solo.methods.chosen_filter import ChosenFilter
from rdm_solo.runs import files
from rdm_solo.runs.files import CONFIG, OVERRIDES, write_atomically, writing

REFERENCE = re.compile(r"\$\{[A-Za-z_]\w*(\.\w+)*\}")


def write(folder: Path, config: DictConfig, overrides: Sequence[str]) -> None:
    """Write the config, and the options that were passed, to the run's folder."""
    path = folder / CONFIG
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    resolved = OmegaConf.to_container(config, resolve=True)
    plain = _without_resolvers(OmegaConf.to_container(config), resolved)
    plain["resume"] = None
    write_atomically(path, OmegaConf.to_yaml(OmegaConf.create(plain)))
    options = [text for text in overrides if not text.startswith(("resume=", "overwrite="))]
    write_atomically(folder / OVERRIDES, OmegaConf.to_yaml(options))


def _without_resolvers(raw: Any, resolved: Any) -> Any:
    """Replace resolver calls by their values, but keep references."""
    if isinstance(raw, dict):
        return {key: _without_resolvers(value, resolved[key]) for key, value in raw.items()}
    if isinstance(raw, list):
        return [_without_resolvers(item, value) for item, value in zip(raw, resolved)]
    if isinstance(raw, str) and "${" in REFERENCE.sub("", raw):
        return resolved
    return raw


def config_path(folder: Path) -> Path:
    """Return the path of a run's config; raise UserError if there is none."""
    path = folder / CONFIG
    if path.is_file():
        return path
    message = f"{folder} is not a run folder: it holds no {CONFIG}"
    runs = sorted(str(config.parents[1]) for config in folder.glob(f"*/{CONFIG}"))
    if runs:
        message += "; it is a sweep or another folder of runs, so pass one:"
    raise UserError("\n    ".join([message, *runs]))


def run_config(folder: Path) -> DictConfig:
    """Return a run's config with references resolved."""
    config = _read(folder)
    with files.prefix_errors(folder / CONFIG):
        OmegaConf.resolve(config)
    return config


def unresolved_config(folder: Path) -> DictConfig:
    """Return a run's config with references between options unresolved."""
    config = _read(folder)
    if "watched" in config:
        raise UserError(
            f"{folder} was written by rdm_solo.watch, which saves neither the model nor its "
            "weights: `report` reads it, and Watch(..., resume=True) resumes it."
        )
    return config


def overrides(folder: Path) -> list[str]:
    """Return the options that were passed to the run, such as ``method=byol``."""
    return plain_overrides(files.read_yaml(folder, OVERRIDES), folder / OVERRIDES)


def plain_overrides(options: Any, path: Path) -> list[str]:
    """Return a file's options; raise UserError if one is accepted only from the command line."""
    if not isinstance(options, list) or not all(isinstance(option, str) for option in options):
        raise files.Unreadable(path, "it is not a list of options")
    for option in options:
        if option.startswith(("+", "-")) or "${" in option:
            raise UserError(
                f"{path} has the option {option}, which is not trusted if it comes from a folder. "
                "Repeat the whole command with hydra.run.dir=FOLDER."
            )
    return options


def trusted_config(
    config: DictConfig, folder: Path, parts: Sequence[str], passed: Collection[str] = ()
) -> DictConfig:
    """Check that these parts of a folder's config can be trusted, and return it resolved.

    ``passed`` has the dotted names of options from the command line, whose values are already in
    the config. Raises UserError, with the file and the value, if :mod:`rdm_solo.runs.trust` refuses
    any other option.
    """
    from rdm_solo.runs import trust  # training trusts its own command line

    config = config.copy()
    with files.prefix_errors(config_path(folder)):
        OmegaConf.resolve(config)
        trust.check(config, parts, passed)
    return config


def _read(folder: Path) -> DictConfig:
    values = files.read_yaml(folder, config_path(folder).relative_to(folder))
    if not isinstance(values, Mapping):
        raise files.Unreadable(folder / CONFIG, "it is not a mapping of options")
    if "${" in REFERENCE.sub("", repr(values)):
        raise files.Unreadable(folder / CONFIG, "it calls a resolver of OmegaConf")
    try:
        return OmegaConf.create(dict(values))
    except OmegaConfBaseException as error:
        raise files.Unreadable(folder / CONFIG, first_line(error)) from error


def title(cfg: DictConfig) -> str:
    """Return a run's title: method, filter, exponent, data set."""
    words = [cfg.method.name]
    chosen = ChosenFilter.from_config(cfg)
    if not chosen.absent:
        words.append(chosen.label)
    if OmegaConf.is_config(cfg.p):
        words.append("p scheduled")
    elif cfg.p is not None:
        words.append(f"p = {cfg.p:g}")
    words.append(cfg.dataset.name)
    return ", ".join(words)
