"""Arguments of the commands: unknown names get one sentence with the nearest known one."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rdm_solo.cli.answers import _first_line, fail, say_anything, sentences
from rdm_solo.messages import suggest

__all__ = ["check_arguments", "command", "config_folder", "quote_paths"]

# Places where keys of one's own make sense: they are handed on to something that knows them.
OPEN = ("trainer.", "backbone.kwargs.", "optimizer.kwargs.", "dataset.source.", "hydra.")


def config_folder() -> Path:
    """``conf/``: inside the package when installed, beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


def command(
    job: Callable[[Any], Any],
    config: str,
    paths: Sequence[str],
    implied: Callable[[list[str]], Sequence[str]] = lambda argv: [],
) -> None:
    """Check what was typed, then let Hydra run the job with the config of that name.

    ``paths`` are options whose values are paths; ``implied`` gives choices that follow from others.
    """
    say_anything()
    argv = quote_paths(sys.argv[1:], paths)
    with sentences():
        choices = implied(argv)
    check_arguments(argv, config, choices)
    sys.argv[1:] = [*argv, *choices]
    import hydra

    hydra.main(version_base="1.3", config_path=str(config_folder()), config_name=config)(job)()


def quote_paths(argv: list[str], names: Sequence[str]) -> list[str]:
    """The arguments, with the values of these options quoted for Hydra, whose grammar would stumble
    over the ``=`` in a sweep's folders or over a comma.

    A comma parts what a multirun sweeps over; elsewhere it is part of the path.

    >>> quote_paths(["run=a/0_p=-0.5,b", "seed=1"], ["run"])
    ["run='a/0_p=-0.5,b'", 'seed=1']
    >>> quote_paths(["-m", "run=a/0_p=-0.5,b"], ["run"])
    ['-m', "run='a/0_p=-0.5','b'"]
    """
    quoted = []
    multirun = "-m" in argv or "--multirun" in argv
    for argument in argv:
        name, sign, value = argument.partition("=")
        if sign and name in names and value not in ("", "null"):
            parts = re.findall(r"'[^']*'|\"[^\"]*\"|[^,]+", value) if multirun else [value]
            parts = [part if part[0] in "'\"" else f"'{part}'" for part in parts]
            argument = f"{name}={','.join(parts)}"
        quoted.append(argument)
    return quoted


def check_arguments(argv: list[str], config: str = "config", implied: Sequence[str] = ()) -> None:
    """Check the command line's overrides against the config before Hydra or torch start.

    ``implied`` are choices that the command makes where the line makes none.
    """
    from hydra._internal.utils import get_args_parser
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException
    from omegaconf import OmegaConf

    OmegaConf.register_new_resolver("rdm_solo.groups", _list_groups, replace=True)
    OmegaConf.register_new_resolver("rdm_solo.word", _word, replace=True)
    arguments = get_args_parser().parse_args(argv)
    if arguments.hydra_help or arguments.help or arguments.shell_completion or arguments.info:
        return
    try:
        overrides = OverridesParser.create().parse_overrides(arguments.overrides)
    except HydraException as error:
        fail(f"cannot read the arguments: {_first_line(error)}")
    groups = _groups(config, arguments.config_dir)
    chosen = list(implied)
    for override in overrides:
        named = override.key_or_group in groups and not override.is_delete()
        if named and (override.is_choice_sweep() or not override.is_sweep_override()):
            chosen.append(_check_choice(override, groups[override.key_or_group]))
    if arguments.config_name is None and arguments.config_dir is None:
        keys = _keys(_compose(chosen, config))
        for override in overrides:
            if override.key_or_group not in groups:
                _check_key(override, keys, list(groups))
        if not arguments.cfg and config == "config":
            _check_writable(overrides, bool(arguments.multirun))


def _groups(config: str, own: str | None = None) -> dict[str, list[str]]:
    """The config's groups and their options, from the files; ``own`` is a user's --config-dir."""
    from omegaconf import OmegaConf

    folder = config_folder()
    defaults = OmegaConf.load(folder / f"{config}.yaml").defaults
    named = {str(key).split()[-1] for entry in defaults if entry != "_self_" for key in entry}
    found: dict[str, list[str]] = {}
    for place in (folder, *([Path(own)] if own else [])):
        for path in sorted(place.rglob("*.yaml")):
            parts = path.relative_to(place).with_suffix("").parts
            if len(parts) > 1 and parts[0] in named and parts[0] != "recipe":
                found.setdefault(parts[0], []).append("/".join(parts[1:]))
    return found


def _list_groups(config: str) -> str:
    """The groups of one command for its --help; Hydra's own list has those of all commands."""
    lines: dict[str, list[str]] = {}
    for group, options in _groups(config).items():
        for option in options:
            folder, _, name = option.rpartition("/")
            lines.setdefault(f"{group}/{folder}" if folder else group, []).append(name)
    return "\n".join(f"{group}: {', '.join(names)}" for group, names in lines.items())


def _word(value: Any) -> str:
    """A value as part of a folder's name; a schedule is a mapping.

    >>> _word(-0.5), _word({"schedule": "cosine", "start": 0, "end": -0.5})
    ('-0.5', 'cosine_0_-0.5')
    """
    return "_".join(map(str, value.values())) if isinstance(value, Mapping) else str(value)


def _check_choice(override: Any, options: list[str]) -> str:
    group = override.key_or_group
    values = list(override.sweep_iterator()) if override.is_sweep_override() else [override.value()]
    listed = [
        value for given in values for value in (given if isinstance(given, list) else [given])
    ]
    for value in map(str, listed):
        if value not in options:
            begun = [option for option in options if option.startswith(f"{value}_")]
            hint = suggest(value, begun or options)
            fail(f"{group} must be one of {', '.join(_near(value, options))}; got {value!r}{hint}")
    first = f"[{','.join(map(str, values[0]))}]" if isinstance(values[0], list) else values[0]
    return f"{group}={first}"


def _near(value: str, options: list[str]) -> list[str]:
    """The options; of nested ones those in the folder that was meant, or else the folders."""
    folder = value.rpartition("/")[0]
    inside = [option for option in options if option.rpartition("/")[0] == folder]
    folders = sorted({option.rpartition("/")[0] + "/..." for option in options if "/" in option})
    return inside or folders


def _check_key(override: Any, keys: list[str], groups: list[str]) -> None:
    key = override.key_or_group
    group, _, leaf = key.partition(".")
    if leaf == "name" and group in groups:
        fail(f"{key} only names the choice that was made; write {group}=... instead")
    if key in keys or key.startswith(("hydra.", "hydra/")):
        return
    if (override.is_add() or override.is_force_add()) and key.startswith(OPEN):
        return
    hint = suggest(key, keys + groups)
    if key.startswith("trainer."):
        hint += f" (other arguments of Lightning's Trainer are given as ++{key}=...)"
    fail(f"there is no option {key!r}{hint or '; --help lists them'}")


def _compose(choices: list[str], config: str) -> Any:
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException

    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        try:
            return compose(config, overrides=choices)
        except HydraException as error:
            fail(_first_line(error))


def _keys(cfg: Any) -> list[str]:
    """Every key of the config, dotted, interpolations left alone."""
    from omegaconf import OmegaConf

    def walk(node: dict[Any, Any] | list[Any], prefix: str) -> Iterator[str]:
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield f"{prefix}{key}"
            if isinstance(value, (dict, list)):
                yield from walk(value, f"{prefix}{key}.")

    plain: Any = OmegaConf.to_container(cfg, resolve=False)
    plain.pop("hydra", None)
    return list(walk(plain, ""))


def _check_writable(overrides: list[Any], multirun: bool) -> None:
    """Find the run's folder before Hydra fails to make it."""
    option = "hydra.sweep.dir" if multirun else "hydra.run.dir"
    given = [override.value() for override in overrides if override.key_or_group == option]
    target = str(given[-1]).strip("'\"") if given else "runs"
    folder = Path(target.split("${")[0] or ".")
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        fail(f"{option}={target} cannot be written: {folder} is no folder that you may write to.")
