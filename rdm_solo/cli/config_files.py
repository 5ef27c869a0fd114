"""The config files and their keys; one sentence for a name that they do not have."""

import contextlib
import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rdm_solo.messages import UserError, suggest


def config_folder() -> Path:
    """Return ``conf/``: inside the package when installed, beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


@contextlib.contextmanager
def explained(config: str, overrides: Sequence[str]) -> Iterator[None]:
    """Raise errors of Hydra and OmegaConf as a :class:`UserError` on one line."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(_sentence(error, config, overrides)) from error


def _sentence(error: Any, config: str, overrides: Sequence[str]) -> str:
    """Return the error's message, or the nearest name if one is wrong."""
    text = " ".join(str(error).split())
    if getattr(error, "options", None):  # there is no such choice in a group
        group, _, choice = str(error.missing_cfg_file).partition("/")
        if group == "hydra":
            return f"{choice} needs a plugin of Hydra: pip install 'rdm-solo[slurm,ray,joblib]'"
        nested = (config_folder() / group).glob("*/*.yaml")
        options = [*error.options, *(f"{path.parent.name}/{path.stem}" for path in nested)]
        return f"there is no {group}={choice}{suggest(choice, options) or '; --help lists them'}"
    if key := re.search(r"Could not override '(?:\+\+|\+)?([^']+)'", text):
        hint = nearest(key[1], _keys(config, overrides)) or "; --help lists them"
        if key[1].startswith("trainer."):
            hint += f" (other arguments of Lightning's Trainer are given as ++{key[1]}=...)"
        return f"there is no option {key[1]!r}{hint}"
    if override := getattr(error, "override", ""):
        return f"cannot read the argument {override!r}: {text}"
    return text


def _keys(config: str, overrides: Sequence[str]) -> list[str]:
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


def nearest(key: str, names: Iterable[str]) -> str:
    """Return the clause that names the option that was probably meant, or an empty string.

    >>> nearest("l", ["max_epochs", "optimizer.lr"]), nearest("epochs", ["max_epochs"])
    ("; did you mean 'optimizer.lr'?", "; did you mean 'max_epochs'?")
    """
    names = [name for name in names if name.startswith("hydra") == key.startswith("hydra")]
    leaves = {name.rpartition(".")[2]: name for name in reversed(names)}
    close = difflib.get_close_matches(key.rpartition(".")[2], leaves, n=1)
    return f"; did you mean {leaves[close[0]]!r}?" if close else ""
