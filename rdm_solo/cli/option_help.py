"""Format a command's options for --help: key, value and the comment in the config files."""

import itertools
import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from omegaconf import OmegaConf

from rdm_solo.cli.config_files import config_folder, dotted, is_section

WIDTH, COLUMN = 98, 38
# Internal keys, which refer to the options that users set.
HIDDEN = re.compile(r"(^|\.)_|^hydra(\.|$)|^(method|filter|dataset)\.name$|^dataset\.source(\.|$)")
REFERENCE = re.compile(r"\$\{(?!oc\.|rdm_solo\.)")


def comments(path: Path, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield each dotted key of a YAML file with the comments above and after it."""
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
                comment_above = [line.strip(" #") for line in lines[first:last]]
                comment_after = lines[last].partition(" # ")[2]
                yield f"{prefix}{name.value}", " ".join([*comment_above, comment_after]).strip()
                yield from visit(value, f"{prefix}{name.value}.")

    yield from visit(yaml.compose(text), "" if "@package _global_" in text else prefix)


def options(config: str, *, _root_: Any) -> str:
    """Return every option of the composed config with its value and comment."""
    plain: Any = OmegaConf.to_container(_root_, resolve=False)
    choices = plain["hydra"]["runtime"]["choices"]
    texts = _texts(config, choices)
    lines: list[str] = []
    for key, value in dotted(plain):
        if HIDDEN.search(key) or REFERENCE.match(str(value)):
            continue
        if key in choices or is_section(value):
            if key in texts and "." not in key and key not in choices:
                lines += ["", *textwrap.wrap(f"{key}: {texts[key]}", WIDTH)]
            continue
        if str(value).startswith("${rdm_solo."):
            value = OmegaConf.select(_root_, key)
        text = value if isinstance(value, str) else json.dumps(value)
        lines += _entry(f"{key}={text}", texts.get(key, ""))
    return _page(lines)


def _texts(config: str, choices: dict[str, str]) -> dict[str, str]:
    """Collect comments by key; chosen files override others, the command's own file all."""
    folder = config_folder()
    chosen = {folder / group / f"{choice}.yaml" for group, choice in choices.items()}
    paths = sorted(folder.glob("*/**/*.yaml"), key=lambda p: (p in chosen, "recipe" not in p.parts))
    texts: dict[str, str] = {}
    for path in paths:
        group = path.relative_to(folder).parts[0]
        prefix = "dataset.views." if group == "views" else f"{group}."
        texts |= {key: text for key, text in comments(path, prefix) if text}
    return texts | {key: text for key, text in comments(folder / f"{config}.yaml") if text}


def groups(*, _root_: Any) -> str:
    """Return the groups of a command, each option with the first sentence of its file."""
    lines: list[str] = []
    for group in sorted(_root_.hydra.runtime.choices):
        folder = config_folder() / group
        if group == "recipe" or not folder.is_dir():  # the defaults list chooses recipes
            continue
        for path in sorted(folder.glob("*.yaml")):
            header = " ".join(line.strip("# ") for line in _header(path) if "@" not in line)
            lines += _entry(f"{group}={path.stem}", re.split(r"(?<=\.)\s", header)[0])
        for subfolder in sorted(folder.glob("*/")):
            names = ", ".join(sorted(path.stem for path in subfolder.glob("*.yaml")))
            lines += _entry(f"{group}={subfolder.name}/", names)
        lines.append("")
    return _page(lines)


def _entry(head: str, text: str) -> list[str]:
    """Return lines with the head in one column and the text in another."""
    line = f"{head:<{COLUMN - 2}}  {text}".rstrip()
    return textwrap.wrap(line, WIDTH, subsequent_indent=" " * COLUMN, break_long_words=False)


def _page(lines: list[str]) -> str:
    text = textwrap.indent("\n".join(lines).rstrip(), "  ")
    return text.replace("$", "$$")  # Hydra replaces $NAME


def _header(path: Path) -> list[str]:
    """Return the comment lines at the top of a file, which describe the whole file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return list(itertools.takewhile(lambda line: line.startswith("#"), lines))
