"""What a linear evaluation is of: its protocol, its data set and its weights."""

from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf, open_dict

from rdm_solo.evaluate import typed_options
from rdm_solo.evaluate.probe import PROTOCOLS, Protocol
from rdm_solo.messages import UserError, check_choice
from rdm_solo.methods import weight_files
from rdm_solo.methods.weight_files import Spec, Weights
from rdm_solo.runs import checkpoints, saved_config
from rdm_solo.runs.settings import options

if TYPE_CHECKING:
    from rdm_solo.data.images import Dataset


def with_dataset(cfg: DictConfig) -> DictConfig:
    """The config with the run's own data set where none was chosen.

    ``dataset.KEY=VALUE`` changes it, which arrives here as a ``dataset`` of those keys alone.
    """
    changes: Any = OmegaConf.to_container(cfg.get("dataset") or OmegaConf.create())
    if {"name", "source"} <= changes.keys():  # chosen
        return cfg
    if cfg.run is None:
        raise UserError(
            "give run=RUN_FOLDER, or checkpoint=FILE with dataset=NAME: a checkpoint "
            "does not record its data set; --help says more."
        )
    folder = Path(cfg.run)
    typed = dict(options(changes, "dataset."))
    own = typed_options.changed(folder, typed)
    with open_dict(cfg):
        cfg.dataset = saved_config.to_build(own, folder, ["dataset"], typed).dataset
    return cfg


def choose_protocol(cfg: DictConfig) -> Protocol:
    """The protocol of that name, or the data set's, with the values that were given."""
    name = cfg.protocol or ("lars" if cfg.dataset.name == "imagenet" else "sgd")
    check_choice("protocol", name, PROTOCOLS)
    plain: Any = OmegaConf.to_container(cfg, resolve=False)
    given = {field.name: plain[field.name] for field in fields(Protocol)}
    return replace(PROTOCOLS[name], **{k: v for k, v in given.items() if v is not None})


def find_weights(cfg: DictConfig) -> tuple[Weights, Spec]:
    """The weights to evaluate and the backbone that they belong to."""
    if cfg.run is not None:
        return checkpoints.of_run(cfg.run, cfg.checkpoint, typed_options.of_part(cfg, "backbone"))
    plain: Any = OmegaConf.to_container(cfg.backbone)
    given = {name: value for name, value in plain.items() if value}
    weights = weight_files.read(cfg.checkpoint)
    about = weights.spec
    if "name" not in given:
        about = weight_files.known(weights)
    elif about is None or about.name != given["name"]:
        about = Spec(given["name"])
    stem = check_choice("backbone.stem", given.get("stem", about.stem), ("small", "imagenet"))
    return weights, Spec(about.name, stem, {**about.kwargs, **given.get("kwargs", {})})


def check_labels(dataset: "Dataset") -> None:
    """Refuse a data set without labels or without validation images."""
    if not dataset.labelled:
        raise UserError(
            f"dataset={dataset.name} has no labels, which a linear evaluation needs; give another "
            "dataset=..., or sort its images into a folder for each class."
        )
    if dataset.val is None:
        raise UserError(
            f"dataset={dataset.name} has no validation images to measure accuracies on; add a "
            "validation folder (dataset.val)."
        )
