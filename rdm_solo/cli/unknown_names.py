"""One sentence for each of Hydra's errors about a command line, with the nearest known name."""

import difflib
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rdm_solo.cli.config_files import config_folder, groups
from rdm_solo.messages import UserError, first_line, printable, suggest

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
# Groups that a command can do without, and those of which several can be chosen.
OPTIONAL = ("recipe", "experiment", "logger", "callbacks")
SEVERAL = ("logger", "callbacks")


def composed(config: str, lines: Sequence[str], own: str | None, hydra_too: bool = False) -> Any:
    """The config that Hydra makes; ``own`` is a folder that the user gave as ``--config-dir``."""
    import hydra

    search = [f"hydra.searchpath=[file://{own}]"] if own else []
    with hydra.initialize_config_dir(str(config_folder()), version_base="1.3"):
        return hydra.compose(config, [*lines, *search], return_hydra_config=hydra_too)


@functools.cache
def _known(config: str, choices: tuple[str, ...], own: str | None) -> dict[str, Any]:
    """Every key, dotted, and its value, with these choices of groups."""
    from omegaconf import OmegaConf

    cfg = composed(config, choices, own, hydra_too=True)
    return dict(dotted(OmegaConf.to_container(cfg, resolve=False)))


def check_overrides(
    typed: Sequence[tuple[Any, list[str]]],
    config: str,
    own: str | None,
    open_sections: Sequence[str],
) -> None:
    """Refuse keys that Hydra does not know, and others that no command reads or can do without.

    ``typed`` are Hydra's overrides, each with its lines, several in a sweep.
    """
    choosable = groups(config, own)

    def chooses(key: str) -> bool:
        return key in choosable or key.startswith("hydra/")

    for override, _ in typed:
        key, line = override.key_or_group, override.input_line
        if override.package is not None:
            raise UserError(f"{line}: write {key}=... without @.")
        if key in choosable and not override.is_delete() and not override.is_sweep_override():
            allowed = (str, list) if key in SEVERAL else str
            if not isinstance(override.value(), allowed):
                raise UserError(
                    f"{line} is no choice; leave {key} out, or give a name that --help lists."
                )
    choices = [lines[0] for override, lines in typed if lines and chooses(override.key_or_group)]
    known = _known(config, tuple(choices), own)
    for override, _ in typed:
        key, line = override.key_or_group, override.input_line
        section, _, leaf = key.partition(".")
        added = override.is_add() or override.is_force_add()
        if override.is_delete():
            if section not in OPTIONAL and not key.startswith((*OPEN, "hydra/")):
                raise UserError(f"{line}: the command needs {key}; give {key} another value.")
        elif chooses(key):
            continue
        elif leaf == "name" and section in choosable:
            raise UserError(
                f"{key} only names the choice that was made; write {section}=... instead."
            )
        elif key not in known and not (added and key.startswith(OPEN)):
            if section in known or section not in open_sections:
                raise UserError(_unknown(key, [*known, *choosable]))
        elif isinstance(known.get(key), dict) and not isinstance(override.value(), dict):
            if "schedule" in known[key]:
                continue  # of p: a value
            raise UserError(
                f"{key} holds several options, so {line} is no value of it; --help lists them "
                f"as {key}.NAME"
            )


def explain(error: Exception, config: str, own: str | None) -> str:
    """What was wrong with the command line, in one sentence."""
    import yaml  # type: ignore[import-untyped, unused-ignore]
    from hydra.errors import MissingConfigException, OverrideParseException

    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        mark = error.problem_mark
        why = error.problem or error.context or "it is no YAML"
        return f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}: {printable(why)}."
    if isinstance(error, RecursionError):
        return f"a file in {own or config_folder()} holds itself: an alias inside its own anchor."
    if isinstance(error, (yaml.reader.ReaderError, UnicodeDecodeError)):
        name = getattr(error, "name", None) or f"a file in {own or config_folder()}"
        return f"{name} is no text in UTF-8 ({error.reason})."
    if isinstance(error, OverrideParseException):
        return (
            f"cannot read the argument {error.override!r}: write KEY=VALUE, and put a value that "
            "holds brackets, commas or quotes into quotes."
        )
    missing = str(error.missing_cfg_file) if isinstance(error, MissingConfigException) else ""
    group, _, choice = missing.partition("/")
    options = groups(config, own).get(group)
    if options is None:
        return first_line(error)
    folder = choice.rpartition("/")[0]
    alike = [option for option in options if option.rpartition("/")[0] == folder]
    folders = sorted({f"{option.rpartition('/')[0]}/..." for option in options if "/" in option})
    begun = [option for option in options if option.startswith(f"{choice}_")]
    hint = suggest(choice, begun or options)
    return f"{group} must be one of {', '.join(alike or folders)}; got {choice!r}{hint}"


def _unknown(key: str, known: Sequence[str]) -> str:
    hint = nearest(key, known)
    if key.startswith("trainer."):
        hint += f" (other arguments of Lightning's Trainer are given as ++{key}=...)"
    elif key.startswith(OPEN):
        hint += f" (to add one, write ++{key}=...)"
    return f"there is no option {key!r}{hint or '; --help lists them'}"


def dotted(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every key of nested mappings and lists, dotted, with what it holds."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        yield f"{prefix}{key}", value
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
    known = [name for name in known if not _leaf(name).startswith("_")]
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
