"""What a linear evaluation is of: its protocol, its device, its data set and its weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from omegaconf import DictConfig, OmegaConf

from rdm_solo.cli.unknown_names import nearest
from rdm_solo.evaluate.probe import PROTOCOLS, Protocol
from rdm_solo.messages import suggest
from rdm_solo.methods import weight_files
from rdm_solo.runs import checkpoints

if TYPE_CHECKING:
    from rdm_solo.data.images import Dataset
    from rdm_solo.methods.weight_files import Spec, Weights

__all__ = ["check_labels", "choose_device", "choose_protocol", "find_weights", "with_dataset"]


def with_dataset(cfg: DictConfig) -> DictConfig:
    """The config with the run's own data set where none was chosen.

    ``dataset.KEY=VALUE`` changes it, which arrives here as a ``dataset`` of those keys alone.
    """
    changes: Any = OmegaConf.to_container(cfg.get("dataset") or OmegaConf.create())
    if "source" in changes:  # chosen
        return cfg
    if cfg.run is None:
        if cfg.checkpoint is None:
            raise ValueError(
                "give run=RUN_FOLDER, or checkpoint=FILE with dataset=...; --help says."
            )
        raise ValueError(
            f"checkpoint={cfg.checkpoint} does not record its data set; add dataset=NAME."
        )
    own = OmegaConf.create({"dataset": checkpoints.run_config(Path(cfg.run)).dataset})
    known = list(_dotted(OmegaConf.to_container(own)))
    for key, value in _leaves(changes, "dataset"):
        if key not in known:
            raise ValueError(f"there is no option {key!r} of this run{nearest(key, known)}")
        OmegaConf.update(own, key, value)
    cfg = cfg.copy()
    OmegaConf.set_struct(cfg, False)
    cfg.dataset = own.dataset
    OmegaConf.set_struct(cfg, True)
    return cfg


def _dotted(node: Any, prefix: str = "") -> Iterator[str]:
    """Every key of nested mappings and lists, dotted."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        yield f"{prefix}{key}"
        if isinstance(value, (dict, list)):
            yield from _dotted(value, f"{prefix}{key}.")


def _leaves(node: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of what is no mapping."""
    if not isinstance(node, dict):
        yield key, node
        return
    for name, value in node.items():
        yield from _leaves(value, f"{key}.{name}")


def choose_protocol(cfg: DictConfig) -> Protocol:
    """The protocol of that name, or the data set's, with the values that were given."""
    if isinstance(cfg.seed, bool) or not isinstance(cfg.seed, int) or cfg.seed < 0:
        raise ValueError(f"seed must be a whole number of at least 0, got {cfg.seed!r}.")
    name = cfg.protocol or ("lars" if cfg.dataset.name == "imagenet" else "sgd")
    if name not in PROTOCOLS:
        raise ValueError(
            f"protocol must be one of {', '.join(PROTOCOLS)}, got {name!r}"
            f"{suggest(name, list(PROTOCOLS))}."
        )
    plain: Any = OmegaConf.to_container(cfg, resolve=False)
    given = {field.name: plain[field.name] for field in fields(Protocol)}
    return replace(PROTOCOLS[name], **{k: v for k, v in given.items() if v is not None})


def choose_device(name: str) -> torch.device:
    """The device of ``device=auto``, ``cpu`` or ``cuda``."""
    found = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda" if found else "cpu")
    if name not in ("cpu", "cuda", "gpu"):
        raise ValueError(f"device must be auto, cpu or cuda, got {name!r}.")
    if name != "cpu" and not found:
        raise ValueError(
            f"device={name}, but this machine shows no GPU to torch {torch.__version__}; use "
            "device=cpu or device=auto."
        )
    return torch.device("cpu" if name == "cpu" else "cuda")


def find_weights(cfg: DictConfig) -> tuple[Weights, Spec]:
    """The weights to evaluate and the backbone that they belong to."""
    given = {name: value for name, value in cfg.backbone.items() if value}
    if cfg.run is not None:
        if given:
            name, value = next(iter(given.items()))
            raise ValueError(
                f"backbone.{name}={value} would be ignored: run={cfg.run} says what its backbone "
                "is; leave it out."
            )
        return checkpoints.of_run(cfg.run, cfg.checkpoint)
    weights = weight_files.read(cfg.checkpoint)
    if not given:
        return weights, weight_files.known(weights)
    if given.get("stem") not in (None, "small", "imagenet"):
        raise ValueError(f"backbone.stem must be small or imagenet, got {given['stem']!r}.")
    about = weights.spec or weight_files.guess(weights.state)
    name = given.get("name") or weight_files.known(weights).name
    same = about if about is not None and about.name == name else None
    stem = given.get("stem") or (same.stem if same else "imagenet")
    kwargs = {**(same.kwargs if same else {}), **_plain(given.get("kwargs", {}))}
    return weights, weight_files.Spec(name, stem, kwargs)


def _plain(kwargs: Any) -> dict[str, Any]:
    found: Any = OmegaConf.to_container(kwargs) if OmegaConf.is_config(kwargs) else kwargs
    return {name: value for name, value in found.items() if value is not None}


def check_labels(dataset: Dataset) -> None:
    """Refuse a data set without labels or without validation images."""
    if not dataset.labelled:
        raise ValueError(
            f"dataset={dataset.name} has no labels, which a linear evaluation needs; give another "
            "dataset=..., or sort its images into a folder for each class."
        )
    if dataset.val is None:
        raise ValueError(
            f"dataset={dataset.name} has no validation images to measure accuracies on; add a "
            "validation folder (dataset.val)."
        )
