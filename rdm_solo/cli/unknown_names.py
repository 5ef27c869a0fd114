"""One sentence for each of Hydra's errors about a command line, with the nearest known name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rdm_solo.cli.answers import first_line
from rdm_solo.cli.config_files import config_folder, groups
from rdm_solo.messages import suggest

__all__ = ["check_keys", "explain", "key_of", "nearest"]

# Sections that take keys of the user's own: they are passed on to something that knows them.
OPEN = (
    "trainer.",
    "callbacks.",
    "backbone.kwargs.",
    "optimizer.kwargs.",
    "dataset.source.",
    "hydra.",
)
# Other names for options.
SYNONYMS = {"arch": "backbone.name", "model": "backbone.name", "gpus": "trainer.devices"}
# Groups that a command can do without.
OPTIONAL = ("recipe", "experiment", "logger", "hydra")


def key_of(override: str) -> str:
    """The key or group that an override changes.

    >>> key_of("++trainer.fast_dev_run=true"), key_of("~recipe")
    ('trainer.fast_dev_run', 'recipe')
    """
    return override.lstrip("+~").partition("=")[0].partition("@")[0]


def check_keys(overrides: Sequence[str], config: str, own: str | None = None) -> None:
    """Refuse keys that Hydra would accept although no command reads them, or needs them.

    ``own`` is a folder that the user gave as ``--config-dir``.
    """
    sections = _sections(config)
    for override in overrides:
        key = key_of(override)
        group, _, leaf = key.partition(".")
        value = override.partition("=")[2]
        if key in sections and not override.startswith("~") and not value.startswith("{"):
            raise ValueError(
                f"{key} holds several options, so {override} is no value of it; --help lists them "
                f"as {key}.NAME"
            )
        if leaf == "name" and (config_folder() / group).is_dir():
            raise ValueError(
                f"{key} only names the choice that was made; write {group}=... instead"
            )
        needed = not key.startswith(OPEN) and group.partition("/")[0] not in OPTIONAL
        if override.startswith("~") and needed:
            raise ValueError(
                f"{override} takes away what the command needs; give {key} another value"
            )
    added = [override for override in overrides if override.startswith("+")]
    if any(not key_of(override).startswith(OPEN) for override in added):
        sentence = _unknown_key(overrides, config, own)
        if sentence:
            raise ValueError(sentence)


def _sections(config: str) -> set[str]:
    """Keys that stand for several options."""
    from omegaconf import OmegaConf

    plain: Any = OmegaConf.to_container(OmegaConf.load(config_folder() / f"{config}.yaml"))
    top = {key for key, value in plain.items() if isinstance(value, dict)}
    below = {f"{key}.kwargs" for key in (*top, "method") if key != "hydra"}
    return top | below | {"method.momentum", "dataset.views"}


def explain(error: Exception, overrides: Sequence[str], config: str, own: str | None = None) -> str:
    """What was wrong with the command line, in one sentence."""
    from hydra.errors import (
        HydraException,
        MissingConfigException,
        OverrideParseException,
        SearchPathException,
    )

    if isinstance(error, OverrideParseException):
        return f"cannot read the arguments: {first_line(error)}"
    if isinstance(error, MissingConfigException):
        group, _, choice = (error.missing_cfg_file or "").partition("/")
        if choice:
            return _unknown_choice(group, choice, groups(config, own).get(group, []))
        return first_line(error)
    if isinstance(error, SearchPathException):  # of --config-dir
        return first_line(error)
    try:
        return _unknown_key(overrides, config, own) or first_line(error)
    except HydraException:  # the choices alone are at fault
        return first_line(error)


def _unknown_choice(group: str, choice: str, options: list[str]) -> str:
    begun = [option for option in options if option.startswith(f"{choice}_")]
    folder = choice.rpartition("/")[0]
    inside = [option for option in options if option.rpartition("/")[0] == folder]
    folders = sorted({option.rpartition("/")[0] + "/..." for option in options if "/" in option})
    hint = suggest(choice, begun or options)
    return f"{group} must be one of {', '.join(inside or folders)}; got {choice!r}{hint}"


def _unknown_key(overrides: Sequence[str], config: str, own: str | None) -> str | None:
    """The sentence about the first override whose key the config does not have."""
    known = groups(config, own)
    values: list[str] = []
    choices: list[str] = []
    for override in overrides:
        chooses = key_of(override) in known or key_of(override).startswith("hydra/")
        (choices if chooses else values).append(override)
    # Of a sweep, the first choice.
    choices = [line if "[" in line else line.partition(",")[0] for line in choices]
    keys = _keys(choices, config, own)
    for override in values:
        key = key_of(override)
        if key in keys or (override.startswith("+") and key.startswith(OPEN)):
            continue
        hint = nearest(key, [*keys, *known])
        sentence = f"there is no option {key!r}{hint}"
        if key.startswith("trainer."):
            sentence += f" (other arguments of Lightning's Trainer are given as ++{key}=...)"
        elif key.startswith(OPEN):
            sentence += f" (to add one, write ++{key}=...)"
        elif not hint:
            sentence += "; --help lists them"
        return sentence
    return None


def _keys(choices: Sequence[str], config: str, own: str | None) -> list[str]:
    """Every key, dotted, of the config with these choices of groups."""
    import hydra
    from omegaconf import OmegaConf

    search = [f"hydra.searchpath=[file://{own}]"] if own else []
    with hydra.initialize_config_dir(str(config_folder()), version_base="1.3"):
        cfg = hydra.compose(config, [*choices, *search], return_hydra_config=True)
    return list(dotted(OmegaConf.to_container(cfg, resolve=False)))


def dotted(node: Any, prefix: str = "") -> Iterator[str]:
    """Every key of nested mappings and lists, dotted."""
    children = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in children:
        yield f"{prefix}{key}"
        if isinstance(value, (dict, list)):
            yield from dotted(value, f"{prefix}{key}.")


def nearest(key: str, known: Iterable[str]) -> str:
    """The clause that names the option that was probably meant, or nothing.

    An option with the same last part comes first; then a similar one of the same section, one that
    abbreviates the words or is abbreviated, a similar one of another section, the section,
    and an option that shares a word.

    >>> known = ["max_epochs", "optimizer.name", "optimizer.lr", "optimizer.weight_decay"]
    >>> for key in ("lr", "optimizer.learning_rate", "optimizer.weigth_decay", "wd", "epochs"):
    ...     print(nearest(key, known))
    ; did you mean 'optimizer.lr'?
    ; did you mean 'optimizer.lr'?
    ; did you mean 'optimizer.weight_decay'?
    ; did you mean 'optimizer.weight_decay'?
    ; did you mean 'max_epochs'?
    """
    known = [name for name in known if name.startswith("hydra") == key.startswith("hydra")]
    section, leaf = key.rpartition(".")[0], _leaf(key)
    siblings = {_leaf(name): name for name in known if name.rpartition(".")[0] == section}
    leaves = {_leaf(name): name for name in reversed(known) if not _leaf(name).isdigit()}
    words = set(leaf.split("_"))
    candidates = [
        *(name for name in known if _leaf(name) == leaf or SYNONYMS.get(leaf) == name),
        *(siblings[name] for name in difflib.get_close_matches(leaf, siblings, 1)),
        *(name for name in known if _leaf(name) == _initials(leaf)),
        *(name for name in known if _initials(_leaf(name)) == leaf),
        *(leaves[name] for name in difflib.get_close_matches(leaf, leaves, 1, cutoff=0.75)),
        *(difflib.get_close_matches(section, known, 1) if not siblings else []),
        *(name for name in known if words & set(_leaf(name).split("_"))),
    ]
    return f"; did you mean {candidates[0]!r}?" if candidates else ""


def _leaf(key: str) -> str:
    """The last part of a dotted key."""
    return key.rpartition(".")[2]


def _initials(name: str) -> str:
    return "".join(word[0] for word in name.split("_") if word) if "_" in name else ""
