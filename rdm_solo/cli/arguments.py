"""Compose a command's config from its arguments with Hydra, and shorten Hydra's errors."""

import contextlib
import difflib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

from rdm_solo.cli.config_files import config_folder, dotted
from rdm_solo.cli.resolvers import register_resolvers
from rdm_solo.cli.terminal import errors_without_traceback, log_to_terminal
from rdm_solo.ground.errors import UserError, suggest
from rdm_solo.ground.packages import EXTRAS, TRAINING, check_installed

# Flags that Hydra handles itself, including those that start several runs.
HYDRA_FLAGS = ("help", "hydra_help", "version", "cfg", "info", "multirun", "shell_completion")
# The group of each command whose keys can be set without choosing one of its options.
OPEN_GROUPS = {"linear": "dataset", "preview": "filter"}
# The option of a command that takes all arguments without a name.
NAMELESS = {"measure": "encoders"}

# Where the sections that take further arguments have them.
FREE_SECTIONS = {
    "backbone": "backbone.kwargs",
    "optimizer": "optimizer.kwargs",
    "trainer": "trainer",
}

Job = Callable[[Any], Any]  # called with a config


def command(job: Job, config: str, argv: Sequence[str]) -> None:
    """Run a command: call the job with its config, or with each config of a sweep."""
    with errors_without_traceback():
        packages = ["hydra"] if config == "preview" else TRAINING
        check_installed("this command", *packages)
        if uses_hydra_flag(argv, config):  # Hydra then sets up the logging as well
            with hydra_errors_as_user_errors(config, argv):
                run_hydra(job, config, argv)
        else:
            log_to_terminal()
            job(compose(config, argv))


def uses_hydra_flag(argv: Sequence[str], config: str = "config") -> bool:
    """Return whether the arguments ask Hydra for help, for a printed config, or for a sweep."""
    arguments = _parse(argv, config)
    return any(getattr(arguments, flag, None) for flag in HYDRA_FLAGS)


def run_hydra(job: Job, config: str, argv: Sequence[str]) -> None:
    """Start Hydra, which answers ``--help`` and the like or calls the job for each run.

    ``hydra.main`` does the same with ``sys.argv``, which Lightning needs unchanged: it repeats the
    command for the other processes of a run.
    """
    import hydra
    from hydra._internal.utils import _run_hydra, get_args_parser

    from rdm_solo.cli import option_help

    arguments = _parse(argv, config)
    register_resolvers(option_help.groups, option_help.main_options, option_help.options)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # otherwise Hydra prints several lines and exits
    hydra.version.setbase("1.3")
    _run_hydra(
        args=arguments,
        args_parser=get_args_parser(),
        task_function=job,
        config_path=str(config_folder()),
        config_name=config,
    )


def compose(config: str, argv: Sequence[str], with_hydra: bool = False) -> Any:
    """Compose the config, and Hydra's own if asked; raise UserError for what Hydra rejects.

    With ``-m`` it is the config of the sweep, whose sweeper sets the values of its runs later.
    """
    import hydra
    import omegaconf
    from hydra.core.global_hydra import GlobalHydra
    from hydra.types import RunMode

    arguments = _parse(argv, config)
    overrides = list(arguments.overrides)
    if arguments.config_dir:
        overrides.append(f"hydra.searchpath=[file://{os.path.abspath(arguments.config_dir)}]")
    register_resolvers()
    with (
        hydra_errors_as_user_errors(config, overrides),
        hydra.initialize_config_dir(str(config_folder()), version_base="1.3"),
    ):
        app: Any = GlobalHydra.instance().hydra
        cfg = app.compose_config(  # as hydra.compose, which has no mode
            arguments.config_name or config,
            overrides,
            RunMode.MULTIRUN if arguments.multirun else RunMode.RUN,
            from_shell=False,
        )
    if not with_hydra:
        with omegaconf.open_dict(cfg):
            del cfg["hydra"]
    return cfg


def _parse(argv: Sequence[str], config: str) -> Any:
    """Return Hydra's parsed arguments."""
    from hydra._internal.utils import get_args_parser

    argv = quote(argv, config)
    if "all" in argv and "--help" in argv:
        argv.remove("all")
        argv.remove("--help")  # Hydra takes options only before it
        argv += ["hydra.help.template=${hydra.help.footer}", "--help"]
    parser: Any = get_args_parser()
    parser.error = _refuse
    return parser.parse_args(argv)


def _refuse(message: str) -> NoReturn:
    raise UserError(f"{message}; options are written NAME=VALUE and stand after -m")


def in_quotes(text: object) -> str:
    """Return a text or a path in quotes, as Hydra reads it.

    >>> in_quotes("it's here")
    "'it\\\\'s here'"
    """
    escaped = str(text).replace("'", "\\'")
    return f"'{escaped}'"


def quote(argv: Sequence[str], config: str = "config") -> list[str]:
    """Quote values with ``=``, which Hydra cannot parse; add ``++`` to keys of ``OPEN_GROUPS``.

    Values without a name become those of the command's option in ``NAMELESS``.

    >>> quote(["-m", "run=a/0_p=-0.5,b"])
    ['-m', "run='a/0_p=-0.5','b'"]
    """
    if config in NAMELESS:
        argv = collect(NAMELESS[config], argv)
    is_sweep = "-m" in argv or "--multirun" in argv
    group = OPEN_GROUPS.get(config)
    has_choice = any(argument.startswith(f"{group}=") for argument in argv)
    arguments = []
    for argument in argv:
        name, _, value = argument.partition("=")
        is_option = not argument.startswith("-")
        if is_option and "=" in value and value[0] not in "'\"[{":
            values = [value]
            if is_sweep:
                values = value.split(",")
            argument = f"{name}={','.join(map(in_quotes, values))}"
        if name.startswith(f"{group}.") and not has_choice:
            argument = f"++{argument}"
        arguments.append(argument)
    return arguments


def collect(option: str, argv: Sequence[str]) -> list[str]:
    """Return the arguments with all values that have no name as one list ``option=[...]``.

    They are existing paths, and arguments that are neither an option nor the value of a flag.

    >>> collect("encoders", ["timm/vit", "dataset=digits", "--cfg", "job"])
    ["encoders=['timm/vit']", 'dataset=digits', '--cfg', 'job']
    """
    values = []
    others = []
    previous = ""
    for argument in argv:
        of_flag = previous.startswith("-") and previous not in ("-m", "--multirun")
        has_name = "=" in argument or argument.startswith("-") or of_flag
        if has_name and not os.path.exists(argument):
            others.append(argument)
        else:
            values.append(in_quotes(argument))
        previous = argument
    if values:  # argparse takes no options after flags
        others.insert(0, f"{option}=[{','.join(values)}]")
    return others


@contextlib.contextmanager
def hydra_errors_as_user_errors(config: str, overrides: Sequence[str]) -> Iterator[None]:
    """Raise errors of Hydra and OmegaConf as a :class:`UserError` on one line."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(_message(error, config, overrides)) from error


def _message(error: Any, config: str, overrides: Sequence[str]) -> str:
    """Return a one-line message that suggests the nearest name for an unknown name."""
    text = " ".join(str(error).split())
    if getattr(error, "options", None):
        return _unknown_choice(error)
    several = re.match("Ambiguous value for argument '(.*?)' ", text)
    if several:
        return f"{several[1]} has several values: add -m for a sweep, or write a list as NAME=[A,B]"
    unknown_key = re.search(r"Could not override '(?:\+\+|\+)?([^']+)'", text)
    choices = [override for override in overrides if _is_choice(override)]
    # If all arguments are choices, a config file overrides what it should not.
    if unknown_key and choices != list(overrides):
        # In an option such as optimizer.kwargs={fused: true}, only the inner key may be unknown.
        key = getattr(error.__cause__, "full_key", unknown_key[1])
        value = "..."
        for override in overrides:
            if override.lstrip("+").startswith(f"{key}="):
                _, _, value = override.partition("=")
        return _unknown_key(key, value, config, choices)
    argument = getattr(error, "override", "")
    if argument:
        return f"cannot read the argument {argument!r}: {text}"
    return text


def _unknown_choice(error: Any) -> str:
    """Return the message for an unknown option of a group, such as ``filter=target``."""
    ((group, choice),) = re.findall("((?:hydra/)?[^/]*)/(.*)", error.missing_cfg_file)
    kind = group.rpartition("/")[2]  # launcher or sweeper
    plugin = f"hydra_plugins.hydra_{choice.partition('_')[0]}_{kind}"
    if plugin in EXTRAS:
        check_installed(f"{group}={choice}", plugin)
    options = list(error.options)
    for path in (config_folder() / group).glob("*/*.yaml"):
        options.append(f"{path.parent.name}/{path.stem}")
    hint = suggest(choice, options) or f"; there are {', '.join(options)}"
    if len(hint) > 300:  # experiments
        hint = "; --help all lists them"
    return f"there is no {group}={choice}{hint}"


def _is_choice(override: str) -> bool:
    """Return whether an override chooses an option of a group, or a folder with more of them."""
    name = override.partition("=")[0]
    return name == "hydra.searchpath" or (config_folder() / name).is_dir()


def _unknown_key(key: str, value: str, config: str, choices: Sequence[str]) -> str:
    """Return the message for an option that does not exist with these choices of groups."""
    from omegaconf import OmegaConf

    cfg: Any = compose(config, choices, with_hydra=key.startswith("hydra."))
    names = [name for name, _ in dotted(OmegaConf.to_container(cfg))]
    similar = nearest_option(key, names)
    hint = "--help all lists them"
    if similar:
        hint = f"did you mean {similar!r}?"
    section, _, name = key.partition(".")
    if section in FREE_SECTIONS:
        free = FREE_SECTIONS[section]
        further = f"further arguments are passed as ++{free}.{name.removeprefix('kwargs.')}={value}"
        if not similar:
            hint = further
        elif section == free:
            hint += f" ({further})"
    return f"there is no option {key!r}; {hint}"


def nearest_option(key: str, names: Iterable[str]) -> str | None:
    """Return the option that a mistyped one probably means, if any is similar.

    Options of the same section come first. Words and initials of a name match as well.

    >>> names = ["optimizer.lr", "optimizer.kwargs", "knn.every_n_epochs", "max_epochs"]
    >>> nearest_option("optimizer.learning_rate", names), nearest_option("epochs", names)
    ('optimizer.lr', 'max_epochs')
    """
    section, _, leaf = key.lower().rpartition(".")
    in_section: dict[str, str] = {}
    everywhere: dict[str, str] = {}
    for name in names:
        parent, _, last = name.rpartition(".")
        everywhere.setdefault(last, name)
        if section and parent in (section, f"{section}.kwargs"):
            in_section.setdefault(last, name)
    for candidates, cutoff in ((in_section, 0.6), (everywhere, 0.7)):
        similar = difflib.get_close_matches(leaf, candidates, n=1, cutoff=cutoff)
        for last in candidates:
            if leaf in (_initials(last), *last.split("_")) or last == _initials(leaf):
                similar.append(last)
        if similar:
            return candidates[similar[0]]
    return None


def _initials(name: str) -> str:
    return "".join(word[:1] for word in name.split("_"))
