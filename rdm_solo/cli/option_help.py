"""The options of a command for its --help: key, value and the comment in the config files."""

import itertools
import json
import re
import textwrap
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from rdm_solo.cli.config_files import config_folder, groups
from rdm_solo.cli.unknown_names import dotted

WIDTH, COLUMN, GROUP_COLUMN = 98, 38, 26
# Keys that say how a choice is built; a user changes the options that they refer to.
BUILT = re.compile(
    r"(^|\.)_|^hydra(\.|$)|^(method|filter|dataset|launcher)\.name$|^dataset\.source(\.|$)"
)


def comments(path: Path, prefix: str = "") -> dict[str, str]:
    """The comment above or behind each key of a YAML file, by the dotted key.

    A file that says ``@package _global_`` begins at the top; any other below ``prefix``.
    """
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    about_the_file = len(_header(path))
    found: dict[str, str] = {}

    def visit(node: Any, prefix: str) -> None:
        if isinstance(node, yaml.SequenceNode):
            for number, item in enumerate(node.value):
                visit(item, f"{prefix}{number}.")
        elif isinstance(node, yaml.MappingNode) and not node.flow_style:
            for name, value in node.value:
                first = last = name.start_mark.line
                while first > about_the_file and lines[first - 1].lstrip().startswith("#"):
                    first -= 1
                above = [line.strip(" #") for line in lines[first:last]]
                behind = lines[last].partition(" # ")[2]
                found[f"{prefix}{name.value}"] = " ".join([*above, behind]).strip()
                visit(value, f"{prefix}{name.value}.")

    visit(yaml.compose(text), "" if "@package _global_" in text or not prefix else f"{prefix}.")
    return found


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
    for key, value in dotted(plain):
        # A list of values is one option; one of mappings is told by their keys.
        listed = isinstance(value, list) and any(isinstance(item, dict) for item in value)
        follows_another = re.match(r"\$\{(?!oc\.)", str(value))
        in_list = key.rpartition(".")[2].isdigit()
        if BUILT.search(key) or listed or follows_another or in_list:
            continue
        text = known.get(key, "")
        if not isinstance(value, dict) or (not value and key not in choices):
            typed = value if isinstance(value, str) else json.dumps(value)
            lines += _entry(f"{key}={typed}", text, COLUMN)
        elif text and "." not in key and key not in choices:
            lines += ["", *textwrap.wrap(f"{key}: {text}", WIDTH)]
    return _printed(lines)


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
    words = " ".join(line.strip("# ") for line in _header(path) if "@package" not in line)
    return re.split(r"(?<=\.)\s", words)[0]


def _header(path: Path) -> list[str]:
    """The comment lines at the top of a file, which are about all of it."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return list(itertools.takewhile(lambda line: line.startswith("#"), lines))
