"""One sentence for each of Hydra's errors about a command line, with the nearest known name."""

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rdm_solo.cli.config_files import config_folder
from rdm_solo.messages import first_line, suggest

# Launchers of Hydra's plugins, and the extra that installs each.
EXTRAS = {"submitit_slurm": "slurm", "submitit_local": "slurm", "ray": "ray", "joblib": "joblib"}


def sentence(error: Exception, config: str, overrides: Sequence[str]) -> str:
    """Return what to tell the user instead of an error of Hydra or OmegaConf."""
    from hydra.errors import MissingConfigException, OverrideParseException

    text = first_line(error)
    if isinstance(error, OverrideParseException):
        return (
            f"cannot read the argument {error.override!r}: write KEY=VALUE, and put a value that "
            "holds brackets, commas or quotes into quotes."
        )
    if isinstance(error, MissingConfigException) and error.options:
        group, _, choice = str(error.missing_cfg_file).partition("/")
        launcher = choice.removeprefix("launcher/")
        if launcher in EXTRAS:
            return f"{launcher} needs a plugin of Hydra: pip install 'rdm-solo[{EXTRAS[launcher]}]'"
        folder = config_folder() / group
        nested = [f"{path.parent.name}/{path.stem}" for path in folder.glob("*/*.yaml")]
        options = [*error.options, *nested]
        longer = [option for option in options if option.startswith(f"{choice}_")]
        hint = suggest(choice, longer or options) or "; --help lists them"
        return f"there is no {group}={choice}{hint}"
    if text.startswith("Ambiguous value for argument"):
        return f"{text.split(maxsplit=4)[4]} gives several values: add -m to sweep over them."
    if key := re.search(r"Could not override '(?:\+\+|\+)?([^']+)'", text):
        hint = nearest(key[1], _known(config, overrides)) or "; --help lists them"
        if key[1].startswith("trainer."):
            hint += f" (other arguments of Lightning's Trainer are given as ++{key[1]}=...)"
        return f"there is no option {key[1]!r}{hint}"
    return text


def _known(config: str, overrides: Sequence[str]) -> list[str]:
    """Return every dotted key of the config with the choices among these overrides."""
    import hydra
    from omegaconf import OmegaConf

    choices = [o for o in overrides if (config_folder() / o.partition("=")[0]).is_dir()]
    with hydra.initialize_config_dir(str(config_folder()), version_base="1.3"):
        cfg = hydra.compose(config, choices, return_hydra_config=True)
    return [key for key, _ in dotted(OmegaConf.to_container(cfg, resolve=False))]


def dotted(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every key of nested mappings, and of mappings in lists, dotted, with its value."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        yield f"{prefix}{key}", value
        if is_section(value):
            yield from dotted(value, f"{prefix}{key}.")


def is_section(value: Any) -> bool:
    """Return whether a value of a config holds options of its own."""
    inner = value if isinstance(value, list) else [value]
    return any(isinstance(each, dict) and each for each in inner)


def nearest(key: str, known: Iterable[str]) -> str:
    """Return the clause that names the option that was probably meant, or an empty string.

    >>> nearest("lr", ["max_epochs", "optimizer.lr"]), nearest("epochs", ["max_epochs"])
    ("; did you mean 'optimizer.lr'?", "; did you mean 'max_epochs'?")
    """
    names = [name for name in known if name.startswith("hydra") == key.startswith("hydra")]
    leaves = {name.rpartition(".")[2]: name for name in reversed(names)}
    close = difflib.get_close_matches(key.rpartition(".")[2], leaves, n=1)
    return f"; did you mean {leaves[close[0]]!r}?" if close else ""
