"""The options of a command for its --help: key, value and the comment in the config files."""

import itertools
import json
import re
import textwrap
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from omegaconf import OmegaConf

from rdm_solo.cli.config_files import config_folder, groups
from rdm_solo.cli.unknown_names import dotted

WIDTH, COLUMN, GROUP_COLUMN = 98, 38, 26
# Keys that say how a choice is built; a user changes the options that they refer to.
BUILT = re.compile(r"(^|\.)_|^hydra(\.|$)|^(method|filter|dataset)\.name$|^dataset\.source(\.|$)")
REFERENCE = re.compile(r"\$\{(?!oc\.|rdm_solo\.)")


def comments(path: Path, prefix: str = "") -> dict[str, str]:
    """Return the comment above or behind each key of a YAML file, by the dotted key.

    Keys of a file that says ``@package _global_`` have no prefix.
    """
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    header = len(_header(path))
    texts: dict[str, str] = {}

    def visit(node: Any, prefix: str) -> None:
        if isinstance(node, yaml.SequenceNode):
            for number, item in enumerate(node.value):
                visit(item, f"{prefix}{number}.")
        elif isinstance(node, yaml.MappingNode) and not node.flow_style:
            for name, value in node.value:
                first = last = name.start_mark.line
                while first > header and lines[first - 1].lstrip().startswith("#"):
                    first -= 1
                above = [line.strip(" #") for line in lines[first:last]]
                behind = lines[last].partition(" # ")[2]
                texts[f"{prefix}{name.value}"] = " ".join([*above, behind]).strip()
                visit(value, f"{prefix}{name.value}.")

    visit(yaml.compose(text), "" if "@package _global_" in text or not prefix else f"{prefix}.")
    return texts


def describe_options(config: str, *, _root_: Any) -> str:
    """Return every option of the composed config with its value and comment."""
    plain: Any = OmegaConf.to_container(_root_, resolve=False)
    choices = plain["hydra"]["runtime"]["choices"]
    texts = _texts(config, choices)
    lines: list[str] = []
    for key, value in dotted(plain):
        # A list of values is one option; the keys of mappings in a list are options.
        is_list_of_mappings = isinstance(value, list) and any(isinstance(v, dict) for v in value)
        is_item = key.rpartition(".")[2].isdigit()
        if BUILT.search(key) or REFERENCE.match(str(value)) or is_list_of_mappings or is_item:
            continue
        if str(value).startswith("${rdm_solo."):
            value = OmegaConf.select(_root_, key)
        text = texts.get(key, "")
        if not isinstance(value, dict) or (not value and key not in choices):
            shown = value if isinstance(value, str) else json.dumps(value)
            lines += _entry(f"{key}={shown}", text, COLUMN)
        elif text and "." not in key and key not in choices:
            lines += ["", *textwrap.wrap(f"{key}: {text}", WIDTH)]
    return _printed(lines)


def _texts(config: str, choices: dict[str, str]) -> dict[str, str]:
    """Return all comments; those of chosen files replace others, and the command's come last."""
    folder = config_folder()
    chosen = {folder / group / f"{choice}.yaml" for group, choice in choices.items()}
    paths = sorted(folder.glob("*/**/*.yaml"), key=lambda p: (p in chosen, "recipe" not in p.parts))
    texts: dict[str, str] = {}
    for path in [*paths, folder / f"{config}.yaml"]:
        group = path.relative_to(folder).parts[0] if path.parent != folder else ""
        prefix = "dataset.views" if group == "views" else group
        texts |= {key: text for key, text in comments(path, prefix).items() if text}
    return texts


def describe_groups(config: str) -> str:
    """Return the groups of a command, each option with the first sentence of its file."""
    lines: list[str] = []
    for group, options in groups(config).items():
        nested: dict[str, list[str]] = {}
        for option in options:
            folder, _, name = option.rpartition("/")
            if folder:
                nested.setdefault(folder, []).append(name)
                continue
            header = _header(config_folder() / group / f"{option}.yaml")
            words = " ".join(line.strip("# ") for line in header if "@package" not in line)
            sentence = re.split(r"(?<=\.)\s", words)[0]
            lines += _entry(f"{group}={option}", sentence, GROUP_COLUMN)
        for folder, names in nested.items():
            lines += _entry(f"{group}={folder}/", ", ".join(names), GROUP_COLUMN)
        lines.append("")
    return _printed(lines)


def _entry(head: str, text: str, column: int) -> list[str]:
    """Return lines with the head in one column and the text in another."""
    indent = " " * column
    above = [head] if len(head) > column - 2 else []
    first = indent if above else head.ljust(column)
    wrapped = textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=indent)
    return [*above, *wrapped] or [head]


def _printed(lines: list[str]) -> str:
    text = "\n".join(lines).rstrip()
    return textwrap.indent(text, "  ").replace("$", "$$")  # Hydra fills in $NAME


def _header(path: Path) -> list[str]:
    """Return the comment lines at the top of a file, which describe the whole file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return list(itertools.takewhile(lambda line: line.startswith("#"), lines))
