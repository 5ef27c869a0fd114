"""Check that a config in a run's folder uses only parts of this package and plain values.

A folder may come from a stranger. A command that builds something from it only calls functions that
this package's config files name, and downloads nothing. To trust an option, the user passes it
again on the command line.
"""

import functools
import re
from collections.abc import Collection, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rdm_solo import filters
from rdm_solo.cli.config_files import config_folder
from rdm_solo.ground.errors import UserError
from rdm_solo.methods.backbones import FETCHING
from rdm_solo.runs.settings import options


def check(config: DictConfig, parts: Sequence[str], passed: Collection[str] = ()) -> None:
    """Raise UserError if these parts of a config have an untrusted value.

    ``passed`` has the dotted names of options from the command line, which are trusted.
    """
    plain: Any = OmegaConf.to_container(config)  # nothing is resolved
    for key, value in options({part: plain[part] for part in parts if part in plain}):
        if any(f"{key}.".startswith(f"{name}.") for name in passed):
            continue
        reason = _refusal(key, value)
        if reason:
            raise UserError(
                f"{key}={value} {reason}, so it is not trusted from a folder. To trust it, pass "
                f"{key}={value} on the command line."
            )


def _refusal(key: str, value: Any) -> str | None:
    """Return why a value from a folder is not trusted; None if it is."""
    *_, leaf = key.split(".")
    if leaf == "_target_" and str(value) in _shipped_targets():
        return None
    if leaf == "_target_":
        return "is not part of this package"
    if leaf.startswith("_") and leaf != "_convert_":
        return "is an instruction for Hydra"
    if key == "filter.function" and value not in (None, *filters.names()):
        return "is not part of this package"
    if key.startswith("backbone.kwargs.") and leaf.startswith(FETCHING) and value:
        return "may fetch or read files"
    if key == "backbone.name" and ":" in str(value):
        return "may fetch files"
    return None


@functools.cache
def _shipped_targets() -> frozenset[str]:
    """Return every ``_target_`` in this package's own config files."""
    targets: set[str] = set()
    for path in config_folder().rglob("*.yaml"):
        text = path.read_text(encoding="utf-8")
        targets.update(re.findall(r"^\s*(?:- )?_target_: (\S+)", text, re.MULTILINE))
    return frozenset(targets)
