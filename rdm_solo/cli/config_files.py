"""Find the config files and list the keys of a config."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def config_folder() -> Path:
    """Return ``conf/``: inside the package when installed, or next to it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    if (package / "conf").is_dir():
        return package / "conf"
    return package.parent / "conf"


def dotted(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and value of every entry in nested mappings and lists."""
    if isinstance(node, list):
        node = dict(enumerate(node))
    for key, value in node.items():
        yield f"{prefix}{key}", value
        if is_section(value):
            yield from dotted(value, f"{prefix}{key}.")


def is_section(value: Any) -> bool:
    """Return whether a config value contains options: a mapping, or a list of mappings or lists."""
    if isinstance(value, list):
        return any(isinstance(entry, (Mapping, list)) for entry in value)
    return isinstance(value, Mapping) and bool(value)
