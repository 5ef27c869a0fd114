"""The data set, the protocol and the weights of a linear evaluation, from its config."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from rdm_solo.data.images import Dataset
from rdm_solo.evaluate import overrides
from rdm_solo.evaluate.probe import PROTOCOLS, Protocol
from rdm_solo.messages import UserError, check_choice, check_switch, check_whole
from rdm_solo.methods import weight_files
from rdm_solo.methods.weight_files import Spec, Weights
from rdm_solo.runs import checkpoints, saved_config


def check(cfg: DictConfig) -> None:
    """Refuse options that cannot be used or that would be ignored."""
    check_choice("features", cfg.features, ("augmented", "cached"))
    check_whole("seed", cfg.seed)
    check_switch("online", cfg.online)
    for name, value in cfg.augmentation.items():
        if cfg.features == "cached" and value is not None:
            raise UserError(
                f"augmentation.{name}={value} would be ignored: features=cached takes clean "
                "images; leave one of them out."
            )


def with_dataset(cfg: DictConfig) -> DictConfig:
    """Return the config with the run's own data set if none was chosen.

    ``dataset.KEY=VALUE`` changes it; then ``cfg.dataset`` holds those keys alone.
    """
    if {"name", "source"} <= (cfg.get("dataset") or {}).keys():  # chosen
        return cfg
    if cfg.run is None:
        raise UserError(
            "give run=RUN_FOLDER, or checkpoint=FILE with dataset=NAME: a checkpoint does not "
            "record its data set; --help says more."
        )
    folder, changes = Path(cfg.run), overrides.passed(cfg, "dataset")
    config = overrides.changed(folder, changes)
    with open_dict(cfg):
        cfg.dataset = saved_config.to_build(config, folder, ["dataset"], changes).dataset
    return cfg


def choose_protocol(cfg: DictConfig) -> Protocol:
    """Return the protocol of that name, or the data set's, with the values that were passed."""
    name = cfg.protocol or ("lars" if cfg.dataset.name == "imagenet" else "sgd")
    check_choice("protocol", name, PROTOCOLS)
    plain: Any = OmegaConf.to_container(cfg, resolve=False)
    passed = {field.name: plain[field.name] for field in fields(Protocol)}
    return replace(PROTOCOLS[name], **{k: v for k, v in passed.items() if v is not None})


def find_weights(cfg: DictConfig) -> tuple[Weights, Spec]:
    """Return the weights to evaluate and the backbone that they belong to."""
    if cfg.run is not None:
        return checkpoints.of_run(cfg.run, cfg.checkpoint, overrides.passed(cfg, "backbone"))
    plain: Any = OmegaConf.to_container(cfg.backbone)
    passed = {name: value for name, value in plain.items() if value}
    weights = weight_files.read(cfg.checkpoint)
    spec = weights.spec
    if "name" not in passed:
        spec = weight_files.known(weights)
    elif spec is None or spec.name != passed["name"]:
        spec = Spec(passed["name"])
    stem = check_choice("backbone.stem", passed.get("stem", spec.stem), ("small", "imagenet"))
    return weights, Spec(spec.name, stem, {**spec.kwargs, **passed.get("kwargs", {})})


def check_labels(dataset: Dataset) -> None:
    """Refuse a data set without labels or without validation images."""
    missing = "labels" if not dataset.labelled else "validation images (dataset.val)"
    if not dataset.labelled or dataset.val is None:
        raise UserError(
            f"dataset={dataset.name} has no {missing}, which a linear evaluation needs; give "
            "another dataset=..."
        )
