"""The options of a command for its --help: key, value and the comment in the config files."""

import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rdm_solo.cli.config_files import config_folder, groups

WIDTH, COLUMN, GROUP_COLUMN = 98, 38, 26
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
    chosen = {folder / group / f"{choice}.yaml" for group, choice in choices.items()}
    # A chosen file's words count before others', and a recipe's, which are few, last.
    paths = sorted(folder.glob("*/**/*.yaml"), key=lambda p: (p in chosen, "recipe" not in p.parts))
    known: dict[str, str] = {}
    for path in [*paths, folder / f"{config}.yaml"]:
        group = path.relative_to(folder).parts[0] if path.parent != folder else ""
        found = comments(path, "dataset.views" if group == "views" else group)
        known |= {key: text for key, text in found.items() if text}
    lines: list[str] = []
    for key, value in _walk(plain):
        if re.match(r"\$\{(?!oc\.)", str(value)):  # follows another option
            continue
        text = known.get(key, "")
        if not isinstance(value, dict) or (not value and key not in choices):
            typed = value if isinstance(value, str) else json.dumps(value)
            lines += _entry(f"{key}={typed}", text, COLUMN)
        elif text and "." not in key and key not in choices:
            lines += ["", *textwrap.wrap(f"{key}: {text}", WIDTH)]
    return _printed(lines)


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


def _entry(head: str, text: str, column: int) -> list[str]:
    """The name in one column, the explanation in another."""
    indent = " " * column
    above = [head] if len(head) > column - 2 else []
    first = indent if above else head.ljust(column)
    wrapped = textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=indent)
    return [*above, *wrapped] or [head]


def _printed(lines: list[str]) -> str:
    text = "\n".join(lines).rstrip()
    return textwrap.indent(text, "  ").replace("$", "$$")  # Hydra fills in $NAME


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
            sentence = _first_sentence(config_folder() / group / f"{option}.yaml")
            lines += _entry(f"{group}={option}", sentence, GROUP_COLUMN)
        for folder, names in nested.items():
            lines += _entry(f"{group}={folder}/", ", ".join(names), GROUP_COLUMN)
        lines.append("")
    return _printed(lines)


def _first_sentence(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    above: list[str] = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        if "@package" not in line:
            above.append(line.strip("# "))
    return re.split(r"(?<=\.)\s", " ".join(above))[0]
