"""Starts a command through Hydra; its errors about the command line become one sentence each."""

from __future__ import annotations

import functools
import os
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rdm_solo.cli.answers import fail, first_line, say_anything
from rdm_solo.cli.config_files import config_folder, groups
from rdm_solo.cli.unknown_names import check_keys, explain, key_of

__all__ = ["command", "compose", "quote_paths"]

# Options whose values may hold signs that Hydra's grammar cannot read.
PATHS = (
    *("run", "resume", "checkpoint", "out", "spectrum"),
    *("dataset.root", "dataset.train", "dataset.val", "hydra.run.dir", "hydra.sweep.dir"),
)


def command(
    job: Callable[[Any], Any],
    config: str,
    open_sections: Sequence[str] = (),
) -> None:
    """Let Hydra run the job with the config of that name.

    ``open_sections`` are groups that the job fills in by itself where none is chosen: keys of them
    are accepted, and the job checks them.
    """
    say_anything()
    sys.argv[1:] = _added(quote_paths(sys.argv[1:]), open_sections)
    from hydra._internal.utils import get_args_parser
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    _register_resolvers()
    arguments = get_args_parser().parse_args()
    started = False
    # With this variable Hydra raises its errors; without it, it prints several lines and ends.
    verbose = os.environ.get("HYDRA_FULL_ERROR", "0")
    os.environ["HYDRA_FULL_ERROR"] = "1"

    @functools.wraps(job)
    def start(cfg: Any) -> Any:
        nonlocal started
        started = True
        os.environ["HYDRA_FULL_ERROR"] = verbose
        return job(cfg)

    try:
        _check(arguments, config, open_sections)
        import hydra

        main = hydra.main(str(config_folder()), config, version_base="1.3")
        main(start)()
    except Exception as error:
        if started:
            raise
        if isinstance(error, (HydraException, OmegaConfBaseException)):
            fail(explain(error, arguments.overrides, config, arguments.config_dir))
        if isinstance(error, OSError):
            option = "hydra.sweep.dir" if arguments.multirun else "hydra.run.dir"
            fail(f"{error.filename} cannot be written ({error.strerror}); give another {option}.")
        if isinstance(error, ValueError):
            fail(first_line(error))
        raise
    finally:
        os.environ["HYDRA_FULL_ERROR"] = verbose


def _added(argv: list[str], sections: Sequence[str]) -> list[str]:
    """Hydra takes keys of a group that nobody chose with ``++`` alone."""
    for section in sections:
        if not any(argument.startswith(f"{section}=") for argument in argv):
            argv = [f"++{a}" if a.startswith(f"{section}.") else a for a in argv]
    return argv


def compose(config: str, argv: Sequence[str], open_sections: Sequence[str] = ()) -> Any:
    """The config that a command line gives, or a ValueError with the sentence of the command.

    Of a multirun it is the first job's; ``open_sections`` as for :func:`command`.
    """
    from hydra._internal.utils import get_args_parser
    from hydra.errors import HydraException

    arguments = get_args_parser().parse_args(_added(quote_paths(list(argv)), open_sections))
    try:
        _check(arguments, config, open_sections)
        return next(_composed(arguments, config))
    except HydraException as error:
        sentence = explain(error, arguments.overrides, config, arguments.config_dir)
        raise ValueError(sentence) from error


def _check(arguments: Namespace, config: str, open_sections: Sequence[str]) -> None:
    """Refuse what Hydra would accept, or notice only after it has made a folder."""
    if arguments.help or arguments.hydra_help or arguments.shell_completion or arguments.info:
        return
    if arguments.config_name is None:
        closed = [o for o in arguments.overrides if key_of(o).split(".")[0] not in open_sections]
        check_keys(closed, config, arguments.config_dir)
    if arguments.multirun:  # Hydra would make the sweep's folder first
        list(_composed(arguments, config))


def _composed(arguments: Namespace, config: str) -> Iterator[Any]:
    """The config; of a sweep, that of each of its choices beside the first values of all others."""
    import hydra
    from hydra.core.override_parser.overrides_parser import OverridesParser

    own = arguments.config_dir
    first = [f"hydra.searchpath=[file://{own}]"] if own else []
    choices: list[list[str]] = [[]]
    for override in OverridesParser.create().parse_overrides(arguments.overrides):
        line = str(override.input_line)
        name = line.partition("=")[0]
        if not override.is_sweep_override():
            first.append(line)
        elif override.is_choice_sweep():
            values = [f"{name}={value}" for value in override.sweep_string_iterator()]
            first.append(values[0])
            if key_of(line) in groups(config, own):
                choices += [[value] for value in values[1:]]
    with hydra.initialize_config_dir(str(config_folder()), version_base="1.3"):
        for choice in choices:
            others = [line for line in first if not choice or key_of(line) != key_of(choice[0])]
            yield hydra.compose(config, [*others, *choice])


def quote_paths(argv: list[str], names: Sequence[str] = PATHS) -> list[str]:
    r"""The arguments, with the values of these options quoted for Hydra.

    Unquoted, an ``=``, a comma or a quote in a path has a meaning of its own in Hydra's grammar.

    In a multirun, a comma separates the values to sweep over, unless the user's own quotes hold it;
    elsewhere, and in the names of Hydra's own folders, it is part of the path.

    >>> quote_paths(["run=a/0_p=-0.5,b", "seed=1", "out=it's"])
    ["run='a/0_p=-0.5,b'", 'seed=1', "out='it\\'s'"]
    >>> quote_paths(["-m", "run=a/0_p=-0.5,b"])
    ['-m', "run='a/0_p=-0.5','b'"]
    """
    multirun = "-m" in argv or "--multirun" in argv
    quoted = []
    for argument in argv:
        name, sign, value = argument.partition("=")
        if sign and name.lstrip("+") in names and value not in ("", "null"):
            sweeps = multirun and not name.startswith("hydra.")
            parts = re.findall(r"'[^']*'|\"[^\"]*\"|[^,]+", value) if sweeps else [value]
            argument = f"{name}={','.join(map(_quoted, parts))}"
        quoted.append(argument)
    return quoted


def _quoted(path: str) -> str:
    """A path in quotes; backslashes count only before a quote and at the end."""
    if len(path) > 1 and path[0] == path[-1] and path[0] in "'\"":
        return path
    escaped = re.sub(r"(\\*)'", r"\1\1\\'", path)
    trailing = len(escaped) - len(escaped.rstrip("\\"))
    return f"'{escaped}{escaped[len(escaped) - trailing :]}'"


def _register_resolvers() -> None:
    from omegaconf import OmegaConf

    from rdm_solo.cli import option_help

    for name, resolve in (
        ("groups", option_help.describe_groups),
        ("options", option_help.describe_options),
        ("word", _word),
    ):
        OmegaConf.register_new_resolver(f"rdm_solo.{name}", resolve, replace=True)


def _word(value: Any) -> str:
    """A value as part of a folder's name; a schedule is a mapping.

    >>> _word(-0.5), _word({"schedule": "cosine", "start": 0, "end": -0.5})
    ('-0.5', 'cosine_0_-0.5')
    """
    return "_".join(map(str, value.values())) if isinstance(value, Mapping) else str(value)
