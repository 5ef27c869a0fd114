"""The config that a run was started with, whichever version of the package wrote it.

A folder may come from a stranger: nothing in its config asks a resolver, and a command that builds
something takes what :mod:`rdm_solo.runs.known_parts` lets through.
"""

import copy
import functools
import logging
import operator
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rdm_solo.messages import UserError
from rdm_solo.runs import known_parts, reading
from rdm_solo.runs.files import CONFIG, SUMMARY

log = logging.getLogger("rdm_solo")

# Modules that `_target_` named before they moved, and where their functions are now.
MOVED = {
    "rdm_solo.augment.": "rdm_solo.data.",
    "rdm_solo.folders.": "rdm_solo.data.",
    "rdm_solo.loggers.tensorboard": "rdm_solo.loggers.event_files.TensorBoard.open",
    "rdm_solo.loggers.weights_and_biases": "rdm_solo.loggers.weights_biases.WeightsAndBiases.open",
}
# How conf/dataset names the folder of all data sets: this machine says where that is.
DATA_FOLDER = "${oc.env:RDM_DATA,data}"
DATA_BELOW = re.escape("$ {oc.env:RDM_DATA,data}") + r"(/\w[\w.-]*)*"
REFERENCE = re.compile(r"\$\{([A-Za-z_]\w*(?:\.\w+)*)\}")  # to an option; no other is followed
HOPS = 8  # from one reference to the next


def source(folder: Path) -> Path:
    """The file that a run's config is read from; ValueError where there is none."""
    for name in (CONFIG, SUMMARY):
        if (folder / name).is_file():
            return folder / name
    raise UserError(f"{folder} is not a run folder: it holds neither {CONFIG} nor {SUMMARY}")


def run_config(folder: Path) -> DictConfig:
    """The config that a run was started with, or the copy in its summary, as plain values."""
    config: DictConfig = OmegaConf.create(resolved(_saved(folder)))
    return config


def with_references(folder: Path) -> DictConfig:
    """The config that a run was started with, references to other options left in place."""
    saved = _saved(folder)
    if "watched" in saved:
        raise UserError(
            f"{folder} was written by rdm_solo.watch, which keeps neither the model nor its "
            "weights: `report` reads it, and Watch(..., resume=True) goes on."
        )
    config: DictConfig = OmegaConf.create(saved)
    return config


def to_build(
    config: Any,
    folder: Path,
    parts: Sequence[str],
    typed: Collection[str] = (),
    references: bool = False,
) -> DictConfig:
    """A folder's config for a command that builds these parts of it.

    ``typed`` are the dotted names of options that the user gave, which are in the config already.
    Data are looked for where this machine keeps them, and are not downloaded unless that was typed.
    References to other options are followed, or stay with ``references``.
    ValueError, which names the file and the value, where the config asks for something that
    :mod:`rdm_solo.runs.known_parts` has not.
    """
    plain: Any = OmegaConf.to_container(config) if OmegaConf.is_config(config) else config
    plain = _with_texts(plain, lambda _, text: text)  # a copy
    dataset = plain.get("dataset")
    nodes: list[Any] = [dataset, dataset.get("source")] if isinstance(dataset, dict) else []
    kept: list[Any] = []  # nodes whose data are below this machine's own folder
    for node in (node for node in nodes if isinstance(node, dict)):
        if "dataset.download" not in typed and node.get("download") is True:
            node["download"] = False
        of_shards = node.get("_target_") == "rdm_solo.data.shards" or "write_index" in node
        if of_shards and "dataset.write_index" not in typed:
            node["write_index"] = False  # beside files that the folder names
        root = node.get("root")
        if isinstance(root, str) and re.fullmatch(DATA_BELOW, root):
            node["root"] = root.removeprefix(_neutral(DATA_FOLDER)) or "."
            kept.append(node)
    file, followed = source(folder), resolved(plain)
    known_parts.check(followed, parts, str(file), typed)
    found = followed.get("dataset")
    root = found.get("root") if isinstance(found, dict) else None
    if "dataset" in parts and root and not kept and "dataset.root" not in typed:
        log.info(f"data are read from {root}, as {file} says")
    for node in kept:
        node["root"] = f"{DATA_FOLDER}{node['root'].removeprefix('.')}"
        if not references:
            node["root"] = OmegaConf.create({"root": node["root"]}).root
    plain = plain if references else resolved(plain)
    made: DictConfig = OmegaConf.create(plain)
    return made


def _saved(folder: Path) -> dict[str, Any]:
    """The values in the folder, inert, with today's names of this package's functions."""
    file = source(folder)
    if file.name == SUMMARY:
        found = reading.read_object(folder, SUMMARY)
        if "config" not in found:
            raise reading.Unreadable(file, f"it holds no config, and there is no {CONFIG}")
        found = found["config"]
    else:
        found = reading.read_yaml(folder, CONFIG)
    if not isinstance(found, dict):
        raise reading.Unreadable(file, "its config holds no options with names")
    saved: dict[str, Any] = inert(of_today(found))
    saved.pop("launcher", None)  # of the sweep
    return saved


def of_today(saved: Any) -> Any:
    """A saved config, as plain values, with today's names in every ``_target_``.

    >>> of_today({"views": {"_target_": "rdm_solo.augment.Views"}})
    {'views': {'_target_': 'rdm_solo.data.Views'}}
    """

    def renamed(key: str, text: str) -> str:
        for old, new in MOVED.items():
            if key == "_target_" and text.startswith(old):
                return new + text.removeprefix(old)
        return text

    return _with_texts(saved, renamed)


def inert(config: Any) -> Any:
    """The plain values of a config in which nothing asks a resolver, such as oc.env.

    A text that is a reference to another option, and nothing else, stays.

    >>> inert({"p": "${oc.env:SECRET}", "name": "${p}"})
    {'p': '$ {oc.env:SECRET}', 'name': '${p}'}
    """
    plain = OmegaConf.to_container(config) if OmegaConf.is_config(config) else config
    return _with_texts(plain, lambda _, text: text if REFERENCE.fullmatch(text) else _neutral(text))


def resolved(plain: Any) -> Any:
    """Plain values whose references are followed to numbers, words, and lists of these.

    >>> resolved({"p": 2, "knn": {"k": "${p}", "all": "${knn}"}})
    {'p': 2, 'knn': {'k': 2, 'all': '$ {knn}'}}
    """

    def followed(_: str, text: str) -> Any:
        value: Any = text
        for _hop in range(HOPS):
            reference = REFERENCE.fullmatch(value) if isinstance(value, str) else None
            if reference is None:
                break
            try:
                value = functools.reduce(operator.getitem, reference[1].split("."), plain)
            except (KeyError, TypeError):  # to an option that is not there
                return _neutral(text)
        if isinstance(value, str):
            return _neutral(value)
        listed = value if isinstance(value, list) else [value]
        nested = any(isinstance(entry, (dict, list)) for entry in listed)
        return _neutral(text) if nested else copy.copy(value)

    return _with_texts(plain, followed)


def _neutral(text: str) -> str:
    return text.replace("${", "$ {")


def _with_texts(node: Any, changed: Any, key: str = "") -> Any:
    if isinstance(node, dict):
        return {name: _with_texts(value, changed, name) for name, value in node.items()}
    if isinstance(node, list):
        return [_with_texts(value, changed) for value in node]
    return changed(key, node) if isinstance(node, str) else node
