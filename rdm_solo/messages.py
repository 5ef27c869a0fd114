"""Validate values that a user passed, and check that packages are installed.

Each check returns the value or raises a :class:`UserError` that names the option, the allowed
values and the received value. ``alternative`` describes a value that the caller also allows.
"""

import difflib
import importlib.util
import math
import sys
from collections.abc import Iterable
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NoReturn

# Counts and sizes are passed to C code as 32-bit integers.
MAX_INT = 2**31 - 1


# The modules that training imports; the extra `train` installs all but solo-learn's.
TRAINING = (
    "solo",
    "hydra",
    "pytorch_lightning",
    "torchvision",
    "sklearn",
    "einops",
    "scipy",
    "timm",
    "tqdm",
    "safetensors",
)
# The extras of modules that the extra `train` does not install.
EXTRAS = {
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "wandb_workspaces": "wandb",
    "pandas": "pandas",
    "hydra_plugins.hydra_submitit_launcher": "slurm",
    "hydra_plugins.hydra_ray_launcher": "ray",
    "hydra_plugins.hydra_joblib_launcher": "joblib",
}


class UserError(ValueError):
    """An error that the user can fix; commands print its message without a traceback."""


class MissingPackages(UserError, ImportError):
    """An error for packages that are not installed."""


class CannotWrite(UserError):
    """An error for a file that cannot be written."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(f"{path} cannot be written: {error.strerror or error}")


def suggest(word: object, allowed: Iterable[str]) -> str:
    """Return a clause that names the closest allowed word, or an empty string.

    >>> suggest("cosin", ["linear", "cosine"])
    "; did you mean 'cosine'?"
    """
    close = difflib.get_close_matches(str(word), list(allowed), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def check_installed(subject: str, *modules: str) -> None:
    """Raise an error that names the missing modules and the commands that install them."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if not missing:
        return
    extras = dict.fromkeys(EXTRAS.get(module, "train") for module in missing if module != "solo")
    config, package = Path(sys.prefix, "pyvenv.cfg"), Path(__file__).parent
    by_uv = config.is_file() and "\nuv = " in config.read_text()
    if by_uv and (package.parent / "pyproject.toml").is_file():  # a clone, which uv installed
        options = [f" --extra {extra}" for extra in extras if extra != "train"]
        commands = [f"uv sync --inexact{''.join(options)}"]
    else:
        commands = [f"pip install '.[{','.join(extras)}]'"] if extras else []
        commands += ["pip install --no-deps solo-learn==1.0.2"] if "solo" in missing else []
        commands = [f"uv {command}" if by_uv else command for command in commands]
    names = ", ".join(module.rpartition(".")[2].replace("solo", "solo-learn") for module in missing)
    raise MissingPackages("\n    ".join([f"{subject} needs {names}; in the clone, run", *commands]))


def check_integer(
    name: str, value: Any, minimum: int = 0, maximum: int = MAX_INT, alternative: str = ""
) -> int:
    """Return the value if it is an integer from ``minimum`` to ``maximum``."""
    is_integer = isinstance(value, Integral) and not isinstance(value, bool)
    if is_integer and minimum <= int(value) <= maximum:
        return int(value)
    limits = f"of at least {minimum}" if maximum == MAX_INT else f"from {minimum} to {maximum}"
    _refuse(name, value, f"an integer {limits}", alternative)


def check_number(
    name: str,
    value: Any,
    minimum: float = -math.inf,
    maximum: float = math.inf,
    *,
    above: float = -math.inf,
    alternative: str = "",
) -> float:
    """Return the value as a float if it is in [minimum, maximum] and greater than ``above``."""
    number = finite(value)
    if number is not None and minimum <= number <= maximum and number > above:
        return number
    limits = {"of at least": minimum, "above": above, "of at most": maximum}
    interval = " and ".join(f"{words} {x}" for words, x in limits.items() if math.isfinite(x))
    if math.isfinite(minimum) and math.isfinite(maximum):
        interval = f"from {minimum} to {maximum}"
    _refuse(name, value, f"a number {interval}" if interval else "a finite number", alternative)


def check_bool(name: str, value: object, alternative: str = "") -> bool:
    """Return the value if it is True or False; Hydra passes ``no`` and ``off`` as text."""
    if isinstance(value, bool):
        return value
    _refuse(name, value, "true or false", alternative)


def check_choice(name: str, value: object, allowed: Iterable[str]) -> str:
    """Return the value if it is one of the allowed words."""
    words = list(allowed)
    if isinstance(value, str) and value in words:
        return value
    _refuse(name, value, f"one of {', '.join(words)}", hint=suggest(value, words))


def finite(value: object) -> float | None:
    """Return the value as a float, or None if it is not a finite number.

    >>> finite(2), finite(True), finite(float("inf")), finite(10**400)
    (2.0, None, None, None)
    """
    if not isinstance(value, Real) or isinstance(value, bool):
        return None
    return float(value) if abs(value) <= sys.float_info.max else None  # type: ignore[operator]


def _refuse(
    name: str, value: object, allowed: str, alternative: str = "", hint: str = ""
) -> NoReturn:
    other = f", or {alternative}" if alternative else ""
    raise UserError(f"{name} must be {allowed}{other}, got {value!r:.200}{hint or '.'}")


def printable(text: object) -> str:
    """Return the text on one line, with unprintable characters escaped."""
    return str(text) if str(text).isprintable() else repr(str(text))[1:-1]


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the class name if there is no message."""
    return str(error).strip().partition("\n")[0].rstrip() or type(error).__name__


def join_first(names: Iterable[str]) -> str:
    """Join up to three names and count the others.

    >>> join_first("abcde"), join_first("ab")
    ('a; b; c; and 2 more', 'a; b')
    """
    names = list(names)
    more = [f"and {len(names) - 3} more"] if len(names) > 3 else []
    return "; ".join([*names[:3], *more])
