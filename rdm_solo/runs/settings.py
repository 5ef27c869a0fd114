"""Dotted names and values of the options that define a setting."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf

from rdm_solo.cli.config_files import dotted, is_section

# Parts of a config that define the model, its data and its training.
MODEL = ("method", "filter", "p", "dataset", "backbone", "optimizer", "scheduler", "batch_size")
# Runs with equal values of these options belong to one setting, whatever their seeds.
SETTING = (*MODEL, "max_epochs", "trainer")
# Options in these parts that depend on the machine: paths and speed.
LOCAL = (
    "root",
    "cache",
    "download",
    "workers",
    "skip_broken",
    "compile",
    "channels_last",
    "fused",
)
# The trainer's options that change results.
TRAINER = ("devices", "num_nodes", "accumulate_grad_batches", "precision", "gradient_clip_val")


def settings(config: Any, parts: Sequence[str] = SETTING) -> dict[str, Any]:
    """Return the options in these parts of a config that define a setting.

    >>> settings({"p": -0.5, "seed": 1, "optimizer": {"lr": 0.1}, "dataset": {"root": "data"}})
    {'p': -0.5, 'optimizer.lr': 0.1}
    """
    plain: Any = OmegaConf.to_container(OmegaConf.create(config), resolve=True)
    chosen = {part: plain[part] for part in parts if part in plain}
    values = {}
    for name, value in options(chosen):
        part, *names = name.split(".")
        if part == "trainer":
            changes_results = ".".join(names) in TRAINER
        else:
            changes_results = not names or names[-1] not in LOCAL
        if changes_results:
            values[name] = value
    return values


def options(node: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the dotted names and values of nested options.

    A list that contains mappings or lists is treated as a mapping from indices.

    >>> dict(options({"p": -1, "views": [{"size": 8}], "sizes": [8, 4]}))
    {'p': -1, 'views.0.size': 8, 'sizes': [8, 4]}
    """
    for name, value in dotted(node):
        if not is_section(value):
            yield name, value


def as_texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Return values as text, in which equal numbers are equal.

    >>> as_texts({"p": -1.0, "lr": 0.1 + 0.2, "name": "sgd"})
    {'p': '-1', 'lr': '0.3', 'name': 'sgd'}
    """
    texts = {}
    for name, value in values.items():
        if isinstance(value, float):
            value = f"{value:.12g}"
        texts[name] = str(value)
    return texts


def differences(one: Any, other: Any, parts: Sequence[str] = (*SETTING, "seed")) -> list[str]:
    """Return the dotted names of the options in which two configs differ.

    >>> differences({"p": -0.5, "threads": 1}, {"p": -1, "threads": 2})
    ['p']
    """
    values = settings(one, parts)
    other_values = settings(other, parts)
    missing = object()  # unequal to None, which is a value
    names = []
    for name in values | other_values:
        if values.get(name, missing) != other_values.get(name, missing):
            names.append(name)
    return names
