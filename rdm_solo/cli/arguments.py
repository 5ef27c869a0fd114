"""Compose a command's config from its arguments with Hydra, and explain what Hydra refuses."""

import contextlib
import difflib
import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rdm_solo.cli.answers import errors_as_sentences, log_to_terminal
from rdm_solo.cli.config_files import config_folder, dotted
from rdm_solo.messages import UserError, suggest

# Flags that Hydra answers, or by which it starts several runs.
HYDRA_FLAGS = ("help", "hydra_help", "version", "cfg", "info", "multirun", "shell_completion")


def command(
    job: Callable[[Any], Any], config: str, open_groups: Sequence[str] = (), hydra_too: bool = False
) -> None:
    """Run the job with the config of that name and the command line's options.

    Hydra itself answers ``--help``, ``--cfg`` and the like, and calls the job for each run of a
    sweep. Keys of ``open_groups`` are accepted although no option of the group was chosen. With
    ``hydra_too`` the config of a single run holds Hydra's under ``hydra``.
    """
    with errors_as_sentences():
        import hydra

        log_to_terminal()
        sys.argv[1:] = readable(sys.argv[1:], open_groups)
        arguments = _parse(sys.argv[1:])
        if not any(getattr(arguments, flag, None) for flag in HYDRA_FLAGS):
            job(compose(config, sys.argv[1:], hydra_too=hydra_too))
            return
        from rdm_solo.cli import option_help

        register_resolvers(option_help.groups, option_help.options)
        os.environ["HYDRA_FULL_ERROR"] = "1"  # otherwise Hydra prints several lines and exits
        with explained(config, arguments.overrides):
            hydra.main(str(config_folder()), config, version_base="1.3")(job)()


def compose(
    config: str, argv: Sequence[str], open_groups: Sequence[str] = (), hydra_too: bool = False
) -> Any:
    """Return the config of that name for a command line, with Hydra's own under ``hydra`` if asked.

    Raises :class:`UserError` with one sentence for what Hydra refuses.
    """
    import hydra

    arguments = _parse(readable(argv, open_groups))
    overrides = list(arguments.overrides)
    if arguments.config_dir:
        overrides.append(f"hydra.searchpath=[file://{os.path.abspath(arguments.config_dir)}]")
    register_resolvers()
    with (
        explained(config, overrides),
        hydra.initialize_config_dir(str(config_folder()), version_base="1.3"),
    ):
        return hydra.compose(arguments.config_name or config, overrides, hydra_too)


def _parse(argv: Sequence[str]) -> Any:
    from hydra._internal.utils import get_args_parser

    return get_args_parser().parse_args(list(argv))


def readable(argv: Sequence[str], open_groups: Sequence[str] = ()) -> list[str]:
    """Return the arguments as Hydra's grammar can read them.

    A value with ``=`` in it, such as the name of a folder, is quoted. In a sweep, commas separate
    values.

    >>> readable(["run=a/0_p=-0.5", "seed=1"])
    ["run='a/0_p=-0.5'", 'seed=1']
    >>> readable(["-m", "run=a/0_p=-0.5,b"])
    ['-m', "run='a/0_p=-0.5',b"]
    """
    sweeps = "-m" in argv or "--multirun" in argv
    arguments = []
    for argument in argv:
        name, _, value = argument.partition("=")
        if "=" in value and value[0] not in "'\"[{" and not argument.startswith("-"):
            parts = value.split(",") if sweeps else [value]
            value = ",".join(f"'{part}'" if "=" in part else part for part in parts)
            argument = f"{name}={value}"
        group = name.partition(".")[0]
        chosen = any(other.startswith(f"{group}=") for other in argv)
        if group != name and group in open_groups and not chosen:
            argument = f"++{argument}"
        arguments.append(argument)
    return arguments


def register_resolvers(*more: Callable[..., str]) -> None:
    """Register the functions that our config files call, by their names."""
    from omegaconf import OmegaConf

    resolvers: list[Any] = [word, warm_up, time_or_job, *more]
    for resolver in resolvers:
        OmegaConf.register_new_resolver(f"rdm_solo.{resolver.__name__}", resolver, replace=True)


def word(value: Any) -> str:
    """Return a value as part of a folder's name; a schedule is a mapping."""
    return "_".join(map(str, value.values())) if isinstance(value, Mapping) else str(value)


def warm_up(epochs: float, max_epochs: int) -> float:
    """Return the length of a warm-up: so many epochs, but at most a fifth of the run."""
    return min(epochs, round(max_epochs / 5, 3))


def time_or_job(now: str, overrides: Sequence[str]) -> str:
    """Return how a run's default folder begins: the time, or the SLURM job.

    A requeued job, and each process of one, then gets the same name; a task of an array is a job
    of its own. A job may start several runs, which their options tell apart.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return now
    return f"job_{job}_{hashlib.sha256(' '.join(overrides).encode()).hexdigest()[:6]}"


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
    from omegaconf import OmegaConf

    text = " ".join(str(error).split())
    if getattr(error, "options", None):  # there is no such choice in a group
        group, _, choice = str(error.missing_cfg_file).partition("/")
        if group == "hydra":
            return f"{choice} needs a plugin of Hydra: pip install 'rdm-solo[slurm,ray,joblib]'"
        nested = (config_folder() / group).glob("*/*.yaml")
        options = [*error.options, *(f"{path.parent.name}/{path.stem}" for path in nested)]
        return f"there is no {group}={choice}{suggest(choice, options) or '; --help lists them'}"
    if key := re.search(r"Could not override '(?:\+\+|\+)?([^']+)'", text):
        choices = [o for o in overrides if (config_folder() / o.partition("=")[0]).is_dir()]
        cfg = compose(config, choices, hydra_too=True)
        names = [name for name, _ in dotted(OmegaConf.to_container(cfg, resolve=False))]
        hint = nearest(key[1], names) or "; --help lists them"
        if key[1].startswith("trainer."):
            hint += f" (other arguments of Lightning's Trainer are given as ++{key[1]}=...)"
        return f"there is no option {key[1]!r}{hint}"
    if override := getattr(error, "override", ""):
        return f"cannot read the argument {override!r}: {text}"
    return text


def nearest(key: str, names: Iterable[str]) -> str:
    """Return the clause that names the option that was probably meant, or an empty string.

    >>> nearest("l", ["max_epochs", "optimizer.lr"]), nearest("epochs", ["max_epochs"])
    ("; did you mean 'optimizer.lr'?", "; did you mean 'max_epochs'?")
    """
    names = [name for name in names if name.startswith("hydra") == key.startswith("hydra")]
    leaves = {name.rpartition(".")[2]: name for name in reversed(names)}
    close = difflib.get_close_matches(key.rpartition(".")[2], leaves, n=1)
    return f"; did you mean {leaves[close[0]]!r}?" if close else ""
