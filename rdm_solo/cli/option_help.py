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
# Internal keys, whose values come from options that users set.
HIDDEN = re.compile(r"(^|\.)_|^hydra(\.|$)|^(method|filter|dataset)\.name$|^dataset\.source(\.|$)")
REFERENCE = re.compile(r"\$\{(?!oc\.|rdm_solo\.)")


def comments(path: Path, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield each dotted key of a YAML file with the comments above and after it."""
    text = path.read_text(encoding="utf-8")
    if "@package _global_" in text:
        prefix = ""
    lines = text.splitlines()
    header = len(_header(path))

    def visit(node: Any, prefix: str) -> Iterator[tuple[str, str]]:
        if isinstance(node, yaml.SequenceNode):
            for number, item in enumerate(node.value):
                yield from visit(item, f"{prefix}{number}.")
        elif isinstance(node, yaml.MappingNode) and not node.flow_style:
            for name, value in node.value:
                last = name.start_mark.line
                first = last
                while first > header and lines[first - 1].lstrip().startswith("#"):
                    first -= 1
                sentences = [line.strip(" #") for line in lines[first:last]]
                sentences.append(lines[last].partition(" # ")[2])
                yield f"{prefix}{name.value}", " ".join(sentences).strip()
                yield from visit(value, f"{prefix}{name.value}.")

    yield from visit(yaml.compose(text), prefix)


def main_options(config: str, *keys: str, _root_: Any) -> str:
    """Return these groups with the names in them, and these options with their comments."""
    choices = _root_.hydra.runtime.choices
    texts = _texts(config, choices)
    lines: list[str] = []
    for key in keys:
        if key in choices:
            value = choices[key]
            text = ", ".join(sorted(path.stem for path in (config_folder() / key).glob("*.yaml")))
        else:
            value = OmegaConf.select(_root_, key)
            text = _first_sentence(texts[key])
        lines += _entry(key, value, text, column=22)
    return _page(lines)


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=\.)\s", text)[0].rstrip(".")


def options(config: str, *, _root_: Any) -> str:
    """Return every option of the composed config with its value and comment."""
    plain: Any = OmegaConf.to_container(_root_, resolve=False)
    choices = plain["hydra"]["runtime"]["choices"]
    texts = _texts(config, choices)
    lines: list[str] = []
    for key, value in dotted(plain):
        if HIDDEN.search(key) or REFERENCE.match(str(value)):
            continue
        if key in choices:
            continue
        if is_section(value):
            if key in texts and "." not in key:
                lines += ["", *textwrap.wrap(f"{key}: {texts[key]}", WIDTH)]
            continue
        if str(value).startswith("${rdm_solo."):
            value = OmegaConf.select(_root_, key)
        lines += _entry(key, value, texts.get(key, ""))
    return _page(lines)


def _texts(config: str, choices: dict[str, str]) -> dict[str, str]:
    """Collect comments by key; chosen files override others, the command's file overrides all."""
    folder = config_folder()
    chosen = {folder / g.split("@")[0] / f"{choice}.yaml" for g, choice in choices.items()}

    def precedence(path: Path) -> tuple[bool, bool, Path]:
        return path in chosen, "recipe" not in path.parts, path

    texts: dict[str, str] = {}
    for path in sorted(folder.glob("*/**/*.yaml"), key=precedence):
        group = path.relative_to(folder).parts[0]
        prefix = "dataset.views." if group == "views" else f"{group}."
        texts |= {key: text for key, text in comments(path, prefix) if text}
    return texts | {key: text for key, text in comments(folder / f"{config}.yaml") if text}


def groups(*, _root_: Any) -> str:
    """List the options of a command's groups with the first sentence of each option's file."""
    listed = set(_root_.hydra.runtime.choices)
    lines: list[str] = []
    for path in sorted(config_folder().glob("*/*.yaml")):
        group = path.parent.name
        # A file that refers to the method is a default, and cannot be chosen by name.
        if group in listed and "${method}" not in path.read_text(encoding="utf-8"):
            sentences = [line.strip("# ") for line in _header(path) if "@" not in line]
            lines += _entry(group, path.stem, _first_sentence(" ".join(sentences)))
    return _page(lines)


def _entry(key: str, value: Any, text: str, column: int = COLUMN) -> list[str]:
    """Return lines with an option in one column and the text in another."""
    if not isinstance(value, str):
        value = json.dumps(value)
    option = f"{key}={value}"
    line = f"{option:<{column - 2}}  {text}".rstrip()
    return textwrap.wrap(line, WIDTH, subsequent_indent=" " * column, break_long_words=False)


def _page(lines: list[str]) -> str:
    text = textwrap.indent("\n".join(lines).rstrip(), "  ")
    return text.replace("$", "$$")  # Hydra replaces $NAME


def _header(path: Path) -> list[str]:
    """Return the comment lines at the top of a file, which describe the whole file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return list(itertools.takewhile(lambda line: line.startswith("#"), lines))
