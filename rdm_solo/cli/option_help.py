"""The options of a command for its --help: key, value and the comment in the config files."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rdm_solo.cli.config_files import config_folder, groups

__all__ = ["comments", "describe_groups", "describe_options"]

WIDTH, COLUMN = 100, 42
# Keys that say how a choice is built; a user changes the options that they refer to.
BUILT = re.compile(r"(^|\.)_|^hydra(\.|$)|^(method|filter|dataset)\.name$|^dataset\.source(\.|$)")


def comments(path: Path, prefix: str = "") -> dict[str, str]:
    """The comment above or behind each key of a YAML file, by the dotted key.

    A file that says ``@package _global_`` begins at the top; any other below ``prefix``.
    """
    text = path.read_text(encoding="utf-8")
    top = "@package _global_" in text or not prefix
    lines = text.splitlines()
    while lines and lines[0].startswith("#"):  # about the whole file
        lines.pop(0)
    parents: list[tuple[int, str]] = [] if top else [(-1, prefix)]
    found: dict[str, str] = {}
    above: list[str] = []
    for line in lines:
        if line.strip().startswith("#"):
            above.append(line.strip(" #"))
            continue
        key = re.match(r"( *)(- )?(\w+):(.*)", line)
        if key is not None:
            indent = len(key[1])
            if key[2]:
                parents = [*_outside(parents, indent + 1), (indent + 1, "0")]
                indent += 2
            parents = [*_outside(parents, indent), (indent, key[3])]
            behind = key[4].partition(" # ")[2]
            found[".".join(name for _, name in parents)] = " ".join([*above, behind]).strip()
        above = []
    return found


def _outside(parents: list[tuple[int, str]], indent: int) -> list[tuple[int, str]]:
    return [parent for parent in parents if parent[0] < indent]


def describe_options(config: str, *, _root_: Any) -> str:
    """Every option of the composed config with its value and comment."""
    from omegaconf import OmegaConf

    plain: Any = OmegaConf.to_container(_root_, resolve=False)
    choices = plain["hydra"]["runtime"]["choices"]
    folder = config_folder()
    known: dict[str, str] = {}
    for path in sorted(folder.glob("*/**/*.yaml"), key=lambda path: "recipe" in path.parts):
        group = path.relative_to(folder).parts[0]
        under = "dataset.views" if group == "views" else group
        known = {**comments(path, under), **{k: v for k, v in known.items() if v}}
    for group, choice in choices.items():
        path = folder / str(group) / f"{choice}.yaml"
        if path.is_file():
            known.update({key: text for key, text in comments(path, group).items() if text})
    known.update({k: v for k, v in comments(folder / f"{config}.yaml").items() if v})
    lines: list[str] = []
    for key, value in _walk(plain):
        if re.match(r"\$\{(?!oc\.)", str(value)):  # follows another option
            continue
        if isinstance(value, dict) and (value or key in choices):
            if known.get(key) and "." not in key and key not in choices:
                lines += ["", *textwrap.wrap(f"{key}: {known[key]}", WIDTH - 2)]
            continue
        lines += _entry(f"{key}={_shown(value)}", known.get(key, ""))
    return textwrap.indent("\n".join(lines), "  ").replace("$", "$$")  # Hydra fills in $NAME


def _walk(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for name, value in items:
        key = f"{prefix}{name}"
        if BUILT.search(key):
            continue
        listed = isinstance(value, list) and any(isinstance(item, dict) for item in value)
        if not listed:
            yield key, value
        if listed or isinstance(value, dict):
            yield from _walk(value, f"{key}.")


def _entry(head: str, text: str) -> list[str]:
    """The name in one column, the explanation in another."""
    lines = textwrap.wrap(text, WIDTH - COLUMN) or [""]
    if len(head) > COLUMN - 6:
        return [head, *(" " * (COLUMN - 4) + line for line in lines)]
    return [
        (head.ljust(COLUMN - 4) if i == 0 else " " * (COLUMN - 4)) + line
        for i, line in enumerate(lines)
    ]


def _shown(value: Any) -> str:
    """A value as it is typed.

    >>> _shown(None), _shown(True), _shown([0.2, 1.0]), _shown({})
    ('null', 'true', '[0.2, 1.0]', '{}')
    """
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    return str(value)


def describe_groups(config: str) -> str:
    """The groups of a command, each option with the first sentence of its file."""
    lines: list[str] = []
    for group, options in groups(config).items():
        nested: dict[str, list[str]] = {}
        for option in options:
            folder, _, name = option.rpartition("/")
            if folder:
                nested.setdefault(folder, []).append(name)
                continue
            head = f"{group}={option}".ljust(26)
            sentence = _first_sentence(config_folder() / group / f"{option}.yaml")
            lines.append(head + textwrap.shorten(sentence, WIDTH - 28, placeholder=" ..."))
        for folder, names in nested.items():
            head = f"{group}={folder}/".ljust(26)
            listed = textwrap.wrap(", ".join(names), WIDTH - 28)
            lines += [(head if i == 0 else " " * 26) + line for i, line in enumerate(listed)]
        lines.append("")
    return textwrap.indent("\n".join(lines).rstrip(), "  ").replace("$", "$$")


def _first_sentence(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    above: list[str] = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        if "@package" not in line:
            above.append(line.strip("# "))
    return re.split(r"(?<=\.)\s", " ".join(above))[0]
