"""The options of a command for its --help: key, value and the comment in the config files."""

import itertools
import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from omegaconf import OmegaConf

from rdm_solo.cli.config_files import config_folder
from rdm_solo.cli.unknown_names import dotted, is_section

WIDTH, COLUMN, GROUP_COLUMN = 98, 38, 26
# Keys that say how a choice is built; a user changes the options that they refer to.
BUILT = re.compile(r"(^|\.)_|^hydra(\.|$)|^(method|filter|dataset)\.name$|^dataset\.source(\.|$)")
REFERENCE = re.compile(r"\$\{(?!oc\.|rdm_solo\.)")


def register_resolvers() -> None:
    """Register the functions that the texts of --help call."""
    OmegaConf.register_new_resolver("rdm_solo.groups", describe_groups, replace=True)
    OmegaConf.register_new_resolver("rdm_solo.options", describe_options, replace=True)


def comments(path: Path, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield each dotted key of a YAML file with the comment above and behind it.

    Keys of a file that says ``@package _global_`` have no prefix.
    """
    text = path.read_text(encoding="utf-8")
    lines, header = text.splitlines(), len(_header(path))

    def visit(node: Any, prefix: str) -> Iterator[tuple[str, str]]:
        if isinstance(node, yaml.SequenceNode):
            for number, item in enumerate(node.value):
                yield from visit(item, f"{prefix}{number}.")
        elif isinstance(node, yaml.MappingNode) and not node.flow_style:
            for name, value in node.value:
                first = last = name.start_mark.line
                while first > header and lines[first - 1].lstrip().startswith("#"):
                    first -= 1
                above = [line.strip(" #") for line in lines[first:last]]
                behind = lines[last].partition(" # ")[2]
                yield f"{prefix}{name.value}", " ".join([*above, behind]).strip()
                yield from visit(value, f"{prefix}{name.value}.")

    yield from visit(yaml.compose(text), "" if "@package _global_" in text else prefix)


def describe_options(config: str, *, _root_: Any) -> str:
    """Return every option of the composed config with its value and comment."""
    plain: Any = OmegaConf.to_container(_root_, resolve=False)
    choices = plain["hydra"]["runtime"]["choices"]
    texts = _texts(config, choices)
    lines: list[str] = []
    for key, value in dotted(plain):
        if BUILT.search(key) or REFERENCE.match(str(value)):
            continue
        if key in choices or is_section(value):
            if key in texts and "." not in key and key not in choices:
                lines += ["", *textwrap.wrap(f"{key}: {texts[key]}", WIDTH)]
            continue
        if str(value).startswith("${rdm_solo."):
            value = OmegaConf.select(_root_, key)
        printed = value if isinstance(value, str) else json.dumps(value)
        lines += _entry(f"{key}={printed}", texts.get(key, ""), COLUMN)
    return _page(lines)


def _texts(config: str, choices: dict[str, str]) -> dict[str, str]:
    """Return all comments; those of chosen files replace others, and the command's come last."""
    folder = config_folder()
    chosen = {folder / group / f"{choice}.yaml" for group, choice in choices.items()}
    paths = sorted(folder.glob("*/**/*.yaml"), key=lambda p: (p in chosen, "recipe" not in p.parts))
    texts: dict[str, str] = {}
    for path in paths:
        group = path.relative_to(folder).parts[0]
        prefix = "dataset.views." if group == "views" else f"{group}."
        texts |= {key: text for key, text in comments(path, prefix) if text}
    return texts | {key: text for key, text in comments(folder / f"{config}.yaml") if text}


def describe_groups(config: str) -> str:
    """Return the groups of a command, each option with the first sentence of its file."""
    defaults: Any = OmegaConf.load(config_folder() / f"{config}.yaml").defaults
    named = {str(key).split()[-1] for entry in defaults if entry != "_self_" for key in entry}
    lines: list[str] = []
    for folder in sorted(config_folder().iterdir()):
        if folder.name not in named - {"recipe"}:  # Hydra chooses recipes itself
            continue
        for path in sorted(folder.glob("*.yaml")):
            header = " ".join(line.strip("# ") for line in _header(path) if "@" not in line)
            sentence = re.split(r"(?<=\.)\s", header)[0]
            lines += _entry(f"{folder.name}={path.stem}", sentence, GROUP_COLUMN)
        for inner in sorted(path for path in folder.iterdir() if path.is_dir()):
            names = ", ".join(sorted(path.stem for path in inner.glob("*.yaml")))
            lines += _entry(f"{folder.name}={inner.name}/", names, GROUP_COLUMN)
        lines.append("")
    return _page(lines)


def _entry(head: str, text: str, column: int) -> list[str]:
    """Return lines with the head in one column and the text in another."""
    line = f"{head:<{column - 2}}  {text}".rstrip()
    return textwrap.wrap(line, WIDTH, subsequent_indent=" " * column, break_long_words=False)


def _page(lines: list[str]) -> str:
    text = "\n".join(lines).rstrip()
    return textwrap.indent(text, "  ").replace("$", "$$")  # Hydra fills in $NAME


def _header(path: Path) -> list[str]:
    """Return the comment lines at the top of a file, which describe the whole file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return list(itertools.takewhile(lambda line: line.startswith("#"), lines))
