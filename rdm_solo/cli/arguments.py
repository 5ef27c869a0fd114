"""Starts a command through Hydra; its errors about the command line become one sentence each."""

import functools
import os
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rdm_solo.cli.answers import fail, say_anything
from rdm_solo.cli.config_files import config_folder
from rdm_solo.cli.unknown_names import check_overrides, composed, explain
from rdm_solo.messages import UserError

# Options whose values may hold signs that Hydra's grammar cannot read.
PATHS = (
    *("run", "resume", "checkpoint", "out", "spectrum"),
    *("dataset.root", "dataset.train", "dataset.val", "hydra.run.dir", "hydra.sweep.dir"),
)

_has_started = False


def command(
    job: Callable[[Any], Any],
    config: str,
    open_sections: Sequence[str] = (),
) -> None:
    """Let Hydra run the job with the config of that name.

    ``open_sections`` are groups that the job fills in by itself where none is chosen: keys of them
    are accepted, and the job checks them.
    """
    import hydra
    from hydra.errors import HydraException

    global _has_started
    _has_started = False
    say_anything()
    _register_resolvers()
    arguments = _parsed(sys.argv[1:], open_sections)
    sys.argv[1:] = _typed(sys.argv[1:], open_sections)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # else Hydra prints several lines and ends

    @functools.wraps(job)
    def start(cfg: Any) -> Any:
        mark_started()
        return job(cfg)

    try:
        if not (arguments.help or arguments.hydra_help or arguments.shell_completion):
            list(_jobs(arguments, config, open_sections))  # Hydra would make the folder first
        hydra.main(str(config_folder()), config, version_base="1.3")(start)()
    except _config_errors(OSError, ValueError) as error:
        if _has_started:
            raise
        if isinstance(error, OSError) and not isinstance(error, HydraException):
            own = _own(arguments)
            if own and str(error.filename).startswith(own):
                fail(f"{error.filename} cannot be read ({error.strerror}).")
            option = "hydra.sweep.dir" if arguments.multirun else "hydra.run.dir"
            fail(f"{error.filename} cannot be written ({error.strerror}); give another {option}.")
        fail(explain(error, config, _own(arguments)))


def mark_started() -> None:
    """What goes wrong from here on is the job's own, and none of the command line."""
    global _has_started
    _has_started = True


def compose(config: str, argv: Sequence[str], open_sections: Sequence[str] = ()) -> Any:
    """The config that a command line gives, or a ValueError with the sentence of the command.

    Of a multirun it is the first job's; ``open_sections`` as for :func:`command`.
    """
    arguments = _parsed(argv, open_sections)
    try:
        return next(_jobs(arguments, config, open_sections))
    except _config_errors(UnicodeDecodeError) as error:
        raise UserError(explain(error, config, _own(arguments))) from error


def _config_errors(*others: type[Exception]) -> tuple[type[Exception], ...]:
    """What Hydra, OmegaConf and YAML raise on a config that they refuse; and those others."""
    import yaml  # type: ignore[import-untyped, unused-ignore]
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    return HydraException, OmegaConfBaseException, yaml.YAMLError, RecursionError, *others


def _parsed(argv: Sequence[str], open_sections: Sequence[str]) -> Namespace:
    from hydra._internal.utils import get_args_parser

    return get_args_parser().parse_args(_typed(argv, open_sections))


def _own(arguments: Namespace) -> str | None:
    """The folder of configs that the user gave."""
    return os.path.abspath(arguments.config_dir) if arguments.config_dir else None


def _typed(argv: Sequence[str], open_sections: Sequence[str]) -> list[str]:
    """The arguments as Hydra takes them: paths quoted, keys of a group that nobody chose added."""
    argv = quote_paths(argv)
    for section in open_sections:
        if not any(argument.startswith(f"{section}=") for argument in argv):
            argv = [f"++{a}" if a.startswith(f"{section}.") else a for a in argv]
    return argv


def _jobs(arguments: Namespace, config: str, open_sections: Sequence[str]) -> Iterator[Any]:
    """The config of the first job, then that of each further choice of a group in a sweep.

    Refuses keys that Hydra would accept although no command reads them.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    own = _own(arguments)
    if own and not os.path.isdir(own):
        raise UserError(f"--config-dir {arguments.config_dir}: there is no such folder.")
    name = arguments.config_name or config
    # Each override with its lines, several where the sweep is over named values.
    typed: list[tuple[Any, list[Any]]] = []
    for override in OverridesParser.create().parse_overrides(arguments.overrides):
        lines: list[Any] = [override.input_line]
        if override.is_sweep_override() and not arguments.multirun:
            raise UserError(
                f"{lines[0]} gives several values: add -m to sweep over them, or write "
                f"one value that is a list as '{override.key_or_group}=[...]'."
            )
        if override.is_sweep_override():  # over a range of numbers, of which no group chooses
            values = override.sweep_string_iterator() if override.is_choice_sweep() else ()
            lines = [f"{override.get_key_element()}={value}" for value in values]
        typed.append((override, lines))
    if arguments.config_name is None:
        check_overrides(typed, config, own, open_sections)
    first = [lines[0] for _, lines in typed if lines]
    yield composed(name, first, own)
    for override, lines in typed:
        for line in lines[1:]:
            if "." not in override.key_or_group:  # may choose from a group
                yield composed(name, [*(x for x in first if x != lines[0]), line], own)


def quote_paths(argv: Sequence[str]) -> list[str]:
    r"""The arguments, with the values of options that are paths quoted for Hydra.

    Unquoted, an ``=``, a comma or a quote in a path has a meaning of its own in Hydra's grammar.

    In a multirun, a comma separates the values to sweep over, unless the user's own quotes hold it;
    elsewhere, and in the names of Hydra's own folders, it is part of the path.

    >>> quote_paths(["run=a/0_p=-0.5,b", "seed=1", "out=it's"])
    ["run='a/0_p=-0.5,b'", 'seed=1', "out='it\\'s'"]
    >>> quote_paths(["-m", "run=a/0_p=-0.5,b"])
    ['-m', "run='a/0_p=-0.5','b'"]
    """
    multirun = "-m" in argv or "--multirun" in argv
    found = []
    for argument in argv:
        name, _, value = argument.partition("=")
        if name.lstrip("+") in PATHS and value not in ("", "null"):
            sweeps = multirun and not name.startswith("hydra.")
            parts = re.findall(r"'[^']*'|\"[^\"]*\"|[^,]+", value) if sweeps else [value]
            argument = f"{name}={','.join(map(quoted, parts))}"
        found.append(argument)
    return found


def quoted(path: str) -> str:
    """A path in quotes; backslashes count only before a quote and at the end."""
    if len(path) > 1 and path[0] == path[-1] and path[0] in "'\"":
        return path
    escaped = re.sub(r"(\\*)'", r"\1\1\\'", path)
    trailing = len(escaped) - len(escaped.rstrip("\\"))
    return f"'{escaped}{escaped[len(escaped) - trailing :]}'"


def _register_resolvers() -> None:
    from omegaconf import OmegaConf

    from rdm_solo.cli import option_help, slurm

    for name, resolve in (
        ("groups", option_help.describe_groups),
        ("options", option_help.describe_options),
        ("word", _word),
        ("time_or_job", slurm.name_of_folder),
    ):
        OmegaConf.register_new_resolver(f"rdm_solo.{name}", resolve, replace=True)


def _word(value: Any) -> str:
    """A value as part of a folder's name; a schedule is a mapping.

    >>> _word(-0.5), _word({"schedule": "cosine", "start": 0, "end": -0.5})
    ('-0.5', 'cosine_0_-0.5')
    """
    return "_".join(map(str, value.values())) if isinstance(value, Mapping) else str(value)
