"""What a config in a run's folder may ask for: parts of this package and plain values.

A folder may come from a stranger. A command that builds something from it calls no function that
this package's own config files do not name, and fetches nothing. The user can pass an option again
on the command line to trust it.
"""

import functools
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rdm_solo import cli, filters
from rdm_solo.messages import UserError
from rdm_solo.methods.weight_files import FETCHING

# Functions of torch that only compute, which a filter may name besides the registered ones.
TORCH_FUNCTIONS = {
    f"torch.{name}"
    for name in (
        "asinh",
        "atan",
        "erf",
        "expm1",
        "log",
        "log10",
        "log1p",
        "log2",
        "rsqrt",
        "sigmoid",
        "sqrt",
        "square",
        "tanh",
    )
}


def check(config: DictConfig, parts: Sequence[str], typed: Collection[str] = ()) -> None:
    """Refuse what these parts of a resolved config may not ask for.

    ``typed`` are the dotted names of options that the user passed.
    """
    for part in parts:
        if part in config:
            plain = OmegaConf.create({part: config[part]})
            for key, value in _leaves(OmegaConf.to_container(plain)):
                passed = any(key == name or key.startswith(f"{name}.") for name in typed)
                reason = None if passed else _refusal(key, value)
                if reason:
                    raise UserError(
                        f"{key}={value} {reason}, so it is not taken from a folder. If you trust "
                        f"it, pass {key}={value} on the command line."
                    )


def is_filter(function: Any) -> bool:
    """Return whether a folder may name that filter function."""
    return function is None or function in TORCH_FUNCTIONS or function in filters.names()


def _refusal(key: str, value: Any) -> str | None:
    """Return why a value may not come from a folder; None if it may."""
    *_, leaf = key.split(".")
    if leaf == "_target_":
        return None if value in _shipped_targets() else "is not part of this package"
    if leaf.startswith("_") and leaf != "_convert_":
        return "is an instruction for Hydra"
    if key == "filter.function" and not is_filter(value):
        return "is not part of this package"
    if key.startswith("backbone.kwargs.") and leaf.startswith(FETCHING) and value:
        return "may fetch or read files"
    if key == "backbone.name" and ":" in str(value):
        return "may fetch files"
    return None


@functools.cache
def _shipped_targets() -> frozenset[str]:
    """Return every ``_target_`` in this package's own config files."""
    texts = (path.read_text(encoding="utf-8") for path in cli.config_folder().rglob("*.yaml"))
    pattern = re.compile(r"^\s*(?:- )?_target_: (\S+)", re.MULTILINE)
    return frozenset(target for text in texts for target in pattern.findall(text))


def _leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value that is neither a mapping nor a list, with its dotted key."""
    if isinstance(node, (dict, list)):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from _leaves(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, node
