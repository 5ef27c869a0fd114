"""Format a command's options for --help: key, value and the comment in the config files."""

import json
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import yaml  # type: ignore[import-untyped]
from omegaconf import OmegaConf

from rdm_solo.cli.config_files import config_folder, dotted, is_section

WIDTH = 98
# Internal keys, whose values come from options that users set.
HIDDEN = re.compile(r"(^|\.)_|^hydra(\.|$)|^(method|filter|dataset)\.name$|^dataset\.source(\.|$)")
REFERENCE = re.compile(r"\$\{(?!oc\.|rdm_solo\.)")


def main_options(config: str, *keys: str, _root_: Any) -> str:
    """Return these groups with the names in them, and these options with their comments."""
    choices = _root_.hydra.runtime.choices
    texts = _comments(config, choices)
    lines: list[str] = []
    for key in keys:
        if key in choices:
            value = choices[key]
            paths = sorted(config_folder().glob(f"{key}/*.yaml"))
            text = ", ".join(path.stem for path in paths)
        else:
            value = OmegaConf.select(_root_, key)
            text = _first_sentence(texts[key])
        lines += _entry(key, value, text, column=22)
    return _page(lines)


def options(config: str, *, _root_: Any) -> str:
    """Return every option of the composed config with its value and comment."""
    plain: Any = OmegaConf.to_container(_root_, resolve=False)
    choices = plain["hydra"]["runtime"]["choices"]
    texts = _comments(config, choices)
    lines: list[str] = []
    for key, value in dotted(plain):
        if key in choices or HIDDEN.search(key) or REFERENCE.match(str(value)):
            continue
        if not is_section(value):
            if str(value).startswith("${rdm_solo."):
                value = OmegaConf.select(_root_, key)
            lines += _entry(key, value, texts.get(key, ""))
        elif key in texts and "." not in key:
            lines += ["", *textwrap.wrap(f"{key}: {texts[key]}", WIDTH)]
    return _page(lines)


def groups(*, _root_: Any) -> str:
    """List the options of a command's groups with the first sentence of each option's file."""
    lines: list[str] = []
    for path in sorted(config_folder().glob("*/*.yaml")):
        group = path.parent.name
        text = path.read_text(encoding="utf-8")
        # A file that refers to the method is a default, and cannot be chosen by name.
        if group in _root_.hydra.runtime.choices and "${method}" not in text:
            sentences = [line.strip("# ") for line in _header(text) if "@" not in line]
            summary = _first_sentence(" ".join(sentences))
            lines += _entry(group, path.stem, summary)
    return _page(lines)


def _comments(config: str, choices: dict[str, str]) -> dict[str, str]:
    """Return the comment on each key of the command's config.

    A key may have a comment in several files. That of a chosen file counts more than those of
    other files, and that of the command's own file counts most.
    """
    folder = config_folder()
    files = sorted(folder.glob("*/**/*.yaml"))
    for group, choice in choices.items():
        name, _, _ = group.partition("@")
        files.append(folder / name / f"{choice}.yaml")
    files.append(folder / f"{config}.yaml")

    texts: dict[str, str] = {}
    for path in files:
        if not path.is_file():  # a choice in another folder of config files
            continue
        text = path.read_text(encoding="utf-8")
        prefix = f"{path.relative_to(folder).parts[0]}."
        if prefix == "views.":
            prefix = "dataset.views."
        elif path.parent == folder or "@package _global_" in text:
            prefix = ""
        lines = text.splitlines()
        header = len(_header(text))
        for key, number in _key_lines(yaml.compose(text), prefix):
            words = [lines[number].partition(" # ")[2]]
            for line in reversed(lines[header:number]):
                if not line.lstrip().startswith("#"):
                    break
                words.insert(0, line.strip(" #"))
            comment = " ".join(words).strip()
            if comment:
                texts[key] = comment
    return texts


def _key_lines(node: Any, prefix: str) -> Iterator[tuple[str, int]]:
    """Yield the dotted name and the line of each key below a YAML node."""
    if isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            yield from _key_lines(item, f"{prefix}{number}.")
    elif isinstance(node, yaml.MappingNode) and not node.flow_style:
        for key, value in node.value:
            yield f"{prefix}{key.value}", key.start_mark.line
            yield from _key_lines(value, f"{prefix}{key.value}.")


def _header(text: str) -> list[str]:
    """Return the comment lines at the top of a file, which describe the whole file."""
    header: list[str] = re.findall(r"\A(?:#.*\n)*", text)
    return header[0].splitlines()


def _first_sentence(text: str) -> str:
    sentence, *_ = re.split(r"(?<=\.)\s", text)
    return sentence.rstrip(".")


def _entry(key: str, value: Any, text: str, column: int = 38) -> list[str]:
    """Return lines with an option in one column and the text in another."""
    if not isinstance(value, str):
        value = json.dumps(value)
    option = f"{key}={value}".ljust(column - 2)
    indent = " " * column
    return textwrap.wrap(
        f"{option}  {text}", WIDTH, subsequent_indent=indent, break_long_words=False
    )


def _page(lines: list[str]) -> str:
    text = textwrap.indent("\n".join(lines).rstrip(), "  ")
    return text.replace("$", "$$")  # Hydra replaces $NAME
