"""One sentence for each of Hydra's errors about a command line, with the nearest known name."""

import contextlib
import difflib
import functools
import re
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rdm_solo.cli.config_files import config_folder, groups
from rdm_solo.messages import UserError, first_line, suggest

# Other names for options.
SYNONYMS = {"arch": "backbone.name", "model": "backbone.name", "gpus": "trainer.devices"}
# Launchers of Hydra's plugins, and the extra that installs each.
EXTRAS = {"submitit_slurm": "slurm", "submitit_local": "slurm", "ray": "ray", "joblib": "joblib"}


def refuse_names_of_choices(overrides: Sequence[str], config: str) -> None:
    """Refuse ``filter.name=...``, which would change a label and not the filter."""
    names = {f"{group}.name" for group in groups(config)} - {"backbone.name", "optimizer.name"}
    for override in overrides:
        key = override.partition("=")[0].lstrip("+")
        if key in names:
            raise UserError(
                f"{key} only labels a choice: write {key.partition('.')[0]}=... instead."
            )


@contextlib.contextmanager
def explained(config: str, arguments: Namespace) -> Iterator[None]:
    """Turn errors of Hydra and OmegaConf into a :class:`UserError` with one sentence."""
    import yaml  # type: ignore[import-untyped, unused-ignore]
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
        raise UserError(_sentence(error, config, arguments)) from error


def _sentence(error: Exception, config: str, arguments: Namespace) -> str:
    from hydra.errors import MissingConfigException, OverrideParseException

    if isinstance(error, OverrideParseException):
        return (
            f"cannot read the argument {error.override!r}: write KEY=VALUE, and put a value that "
            "holds brackets, commas or quotes into quotes."
        )
    text = first_line(error)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, choice = error.missing_cfg_file.partition("/")
        launcher = choice.removeprefix("launcher/")
        if launcher in EXTRAS:
            return f"{launcher} needs a plugin of Hydra: pip install 'rdm-solo[{EXTRAS[launcher]}]'"
        options = groups(config, arguments.config_dir).get(group, [])
        longer = [option for option in options if option.startswith(f"{choice}_")]
        hint = suggest(choice, longer or options) or "; --help lists them"
        return f"there is no {group}={choice}{hint}" if options else text
    if text.startswith("Ambiguous value for argument"):
        return f"{text.split(maxsplit=4)[4]} gives several values: add -m to sweep over them."
    if key := re.search(r"Could not override '(?:\+\+|\+)?([^']+)'", text):
        return _unknown(key[1], _known(config, tuple(_choices(arguments.overrides, config))))
    return text


def _choices(overrides: Sequence[str], config: str) -> list[str]:
    chosen = groups(config)
    return [override for override in overrides if override.partition("=")[0] in chosen]


@functools.cache
def _known(config: str, choices: tuple[str, ...]) -> list[str]:
    """Return every dotted key of the config with these choices."""
    import hydra
    from omegaconf import OmegaConf

    with hydra.initialize_config_dir(str(config_folder()), version_base="1.3"):
        cfg = hydra.compose(config, list(choices), return_hydra_config=True)
    return [key for key, _ in dotted(OmegaConf.to_container(cfg, resolve=False))]


def _unknown(key: str, known: Sequence[str]) -> str:
    hint = nearest(key, known) or "; --help lists them"
    if key.startswith("trainer."):
        hint += f" (other arguments of Lightning's Trainer are given as ++{key}=...)"
    return f"there is no option {key!r}{hint}"


def dotted(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every key of nested mappings and lists, dotted, with its value."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        yield f"{prefix}{key}", value
        if isinstance(value, (dict, list)):
            yield from dotted(value, f"{prefix}{key}.")


def nearest(key: str, known: Iterable[str]) -> str:
    """Return the clause that names the option that was probably meant, or an empty string.

    An option with the same last part comes first, then a similar or abbreviated one.

    >>> known = ["max_epochs", "optimizer.name", "optimizer.lr", "optimizer.weight_decay"]
    >>> for key in ("lr", "optimizer.weigth_decay", "wd", "epochs"):
    ...     print(nearest(key, known))
    ; did you mean 'optimizer.lr'?
    ; did you mean 'optimizer.weight_decay'?
    ; did you mean 'optimizer.weight_decay'?
    ; did you mean 'max_epochs'?
    """
    leaf = key.rpartition(".")[2]
    known = [name for name in known if name.startswith("hydra") == key.startswith("hydra")]
    leaves = {name.rpartition(".")[2]: name for name in reversed(known)}
    candidates = [
        *(name for name in known if name.rpartition(".")[2] == leaf or SYNONYMS.get(leaf) == name),
        *difflib.get_close_matches(key, known, 1, cutoff=0.8),
        *(leaves[name] for name in difflib.get_close_matches(leaf, leaves, 1, cutoff=0.75)),
        *(name for last, name in leaves.items() if _initials(last) == leaf),
        *(name for last, name in leaves.items() if leaf in last.split("_")),
    ]
    return f"; did you mean {candidates[0]!r}?" if candidates else ""


def _initials(name: str) -> str:
    return "".join(part[:1] for part in name.split("_"))
