"""Options of Python as the words of a command line."""

import re
from collections.abc import Iterator, Mapping
from numbers import Integral, Real
from os import PathLike, fspath
from typing import Any

import numpy as np

from rdm_solo.cli.arguments import PATHS, quoted
from rdm_solo.messages import UserError, shown

# Names that the command line has; +, ++ and ~ before one as Hydra has them.
NAME = re.compile(r"(\+{1,2}|~)?[A-Za-z_][\w./]*")
# Text that needs no quotes, unless it reads as something else.
PLAIN = re.compile(r"[A-Za-z_]\w*([./]\w+)*")
OTHERS = ("null", "true", "false", "nan", "inf")


def words(options: Mapping[str, Any]) -> list[str]:
    """The command line of these options; a dict is a section's, unless it is a schedule.

    >>> words({"method": "byol", "p": {"schedule": "linear", "start": 0, "end": -0.5}})
    ['method=byol', 'p={schedule:linear,start:0,end:-0.5}']
    >>> words({"optimizer": {"lr": 0.1, "kwargs": {"nesterov": True}}, "~callbacks.knn": None})
    ['optimizer.lr=0.1', 'optimizer.kwargs.nesterov=true', '~callbacks.knn']
    >>> words({"resume": "runs/p=1", "backbone.name": "timm/resnet18.a1", "dataset.crop": "a b"})
    ['resume=runs/p=1', 'backbone.name=timm/resnet18.a1', "dataset.crop='a b'"]
    """
    return list(_words(options))


def _words(options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise UserError(f"{shown(name)} is not an option's name, such as optimizer.lr.")
        if name.startswith("~") and value is None:
            yield name
        elif isinstance(value, Mapping) and value and "schedule" not in value:
            yield from _words({f"{name}.{key}": each for key, each in value.items()})
        else:
            yield f"{name}={_value(name, value)}"


def _value(name: str, value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Integral):
        return str(int(value))
    if isinstance(value, np.floating):  # float32's -0.3 is not -0.30000001192092896
        return repr(float(str(value)))
    if isinstance(value, Real):
        return repr(float(value))
    if isinstance(value, (str, PathLike)):
        return _text(name, fspath(value))
    if isinstance(value, (list, tuple)):
        return f"[{','.join(_value(name, each) for each in value)}]"
    if isinstance(value, Mapping):
        pairs = (f"{_text(name, key)}:{_value(name, each)}" for key, each in value.items())
        return f"{{{','.join(pairs)}}}"
    raise UserError(
        f"{name} must be a number, text, True, False, None, or a list or dict of these, got "
        f"{shown(value)}."
    )


def _text(name: str, value: Any) -> str:
    if isinstance(value, str) and value.isprintable():
        plain = PLAIN.fullmatch(value) and value.lower() not in OTHERS
        return value if plain or name in PATHS else quoted(value)  # the command quotes paths
    raise UserError(f"{name} must be text on one line, got {shown(value)}.")
