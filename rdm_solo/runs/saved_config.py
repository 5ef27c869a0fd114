"""The config that a run was started with, whichever version of the package wrote it."""

import json
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rdm_solo.runs.files import CONFIG, SUMMARY

# Modules that `_target_` named before they moved, and where their functions are now.
MOVED = {
    "rdm_solo.augment.": "rdm_solo.data.",
    "rdm_solo.folders.": "rdm_solo.data.",
    "rdm_solo.loggers.tensorboard": "rdm_solo.loggers.event_files.TensorBoard.open",
    "rdm_solo.loggers.weights_and_biases": "rdm_solo.loggers.weights_biases.WeightsAndBiases.open",
}
DATA_FOLDER = "${oc.env:RDM_DATA,data}"  # in conf/dataset; the one variable that may be read


def run_config(folder: Path) -> DictConfig:
    """The config that a run was started with, or the copy in its summary.

    The folder may come from a stranger, so nothing in it asks a resolver.
    """
    saved, summary = folder / CONFIG, folder / SUMMARY
    if saved.is_file():
        return of_today(inert(OmegaConf.load(saved)))
    if not summary.is_file():
        raise ValueError(f"{folder} is not a run folder: it holds neither {CONFIG} nor {SUMMARY}")
    found = json.loads(summary.read_text(encoding="utf-8"))
    if not isinstance(found, dict) or "config" not in found:
        raise ValueError(f"{SUMMARY} holds no config, and there is no {CONFIG}")
    return of_today(inert(found["config"]))


def read_config(path: Path) -> DictConfig:
    """The config in that YAML file as it is, with today's names of this package's functions."""
    return of_today(OmegaConf.to_container(OmegaConf.load(path)))


def of_today(saved: Any) -> DictConfig:
    """A saved config, as plain values, with today's names in every ``_target_``.

    >>> of_today({"views": {"_target_": "rdm_solo.augment.Views"}}).views._target_
    'rdm_solo.data.Views'
    """

    def renamed(key: str, text: str) -> str:
        for old, new in MOVED.items():
            if key == "_target_" and text.startswith(old):
                return new + text.removeprefix(old)
        return text

    config: DictConfig = OmegaConf.create(_with_texts(saved, renamed))
    return config


def inert(config: Any) -> Any:
    """The plain values of a config with all that asks a resolver, such as oc.env, left as text.

    References to other options stay.

    >>> inert({"p": "${oc.env:SECRET}", "name": "${p}"})
    {'p': '$ {oc.env:SECRET}', 'name': '${p}'}
    """
    plain = OmegaConf.to_container(config) if OmegaConf.is_config(config) else config
    return _with_texts(
        plain, lambda _, text: text.replace("${", "$ {") if asks_resolver(text) else text
    )


def asks_resolver(text: str) -> bool:
    """Whether OmegaConf would ask a resolver for a part of the text, the data folder aside."""
    rest = text.replace(DATA_FOLDER, "")
    return "${" in rest and ":" in rest


def _with_texts(node: Any, changed: Any, key: str = "") -> Any:
    if isinstance(node, dict):
        return {name: _with_texts(value, changed, name) for name, value in node.items()}
    if isinstance(node, list):
        return [_with_texts(value, changed) for value in node]
    return changed(key, node) if isinstance(node, str) else node
