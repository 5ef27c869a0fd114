"""Choose the data set, the protocol and the weights of a linear evaluation from its config."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from rdm_solo.evaluate.probe import PROTOCOLS, Protocol
from rdm_solo.ground.errors import UserError, suggest
from rdm_solo.ground.values import check_bool, check_choice, check_integer
from rdm_solo.methods import weight_files
from rdm_solo.methods.weight_files import Spec, Weights
from rdm_solo.runs import checkpoints, saved_config
from rdm_solo.runs.settings import options


def check(cfg: DictConfig) -> None:
    """Raise UserError for options that are invalid or would be ignored."""
    check_choice("features", cfg.features, ("augmented", "cached"))
    check_integer("seed", cfg.seed)
    check_bool("online", cfg.online)
    if cfg.features == "augmented":
        return
    for name, value in cfg.augmentation.items():
        if value is not None:
            raise UserError(
                f"augmentation.{name}={value} would be ignored: features=cached uses clean "
                "images; leave one of the two options out."
            )


def with_dataset(cfg: DictConfig) -> DictConfig:
    """Return the config, with the run's data set if no other was chosen.

    In that case the given ``cfg.dataset`` has only ``dataset.KEY=VALUE`` options, which override
    the run's.
    """
    passed = cfg.get("dataset") or {}
    if "name" in passed and "source" in passed:  # a data set was chosen
        return cfg
    if cfg.run is None:
        raise UserError(
            "pass run=RUN_FOLDER, or checkpoint=FILE with dataset=NAME: a checkpoint does not "
            "record its data set; see --help."
        )
    folder = Path(cfg.run)
    config = saved_config.unresolved_config(folder)
    plain: Any = OmegaConf.to_container(config)
    names = dict(options(plain))
    changes = nonempty_options(cfg, "dataset")
    for name, value in changes.items():
        if name not in names:
            hint = suggest(name, names) or "."
            raise UserError(f"this run has no option {name!r}{hint}")
        OmegaConf.update(config, name, value, force_add=True)
    with open_dict(cfg):
        cfg.dataset = saved_config.trusted_config(config, folder, ["dataset"], changes).dataset
    return cfg


def choose_protocol(cfg: DictConfig) -> Protocol:
    """Return the named or default protocol, changed by the options that were passed."""
    default = "lars" if cfg.dataset.name == "imagenet" else "sgd"
    name = cfg.protocol or default
    check_choice("protocol", name, PROTOCOLS)
    plain: Any = OmegaConf.to_container(cfg, resolve=False)
    changes = {}
    for field in fields(Protocol):
        if plain[field.name] is not None:
            changes[field.name] = plain[field.name]
    return replace(PROTOCOLS[name], **changes)


def find_weights(cfg: DictConfig) -> tuple[Weights, Spec]:
    """Return the weights to evaluate and the description of their backbone."""
    if cfg.run is not None:
        passed = nonempty_options(cfg, "backbone")
        return checkpoints.read_backbone(cfg.run, cfg.checkpoint, passed)
    backbone: Any = OmegaConf.to_container(cfg.backbone)
    name = backbone["name"]
    weights = weight_files.read(cfg.checkpoint)
    spec = weight_files.recognise(weights.state)
    if not name:
        spec = weight_files.spec_of(weights)
    elif spec is None or spec.name != name:
        spec = Spec(name)
    stem = backbone["stem"] or spec.stem
    check_choice("backbone.stem", stem, ("small", "imagenet"))
    kwargs = {**spec.kwargs, **(backbone["kwargs"] or {})}
    return weights, Spec(spec.name, stem, kwargs)


def nonempty_options(cfg: DictConfig, part: str) -> dict[str, Any]:
    """Return the options of one section of a config that are set, by their dotted names.

    >>> nonempty_options(OmegaConf.create({"backbone": {"name": None, "width": 8}}), "backbone")
    {'backbone.width': 8}
    """
    plain: Any = OmegaConf.to_container(cfg)
    section = {part: plain.get(part)}
    return {name: value for name, value in options(section) if value not in (None, {})}
