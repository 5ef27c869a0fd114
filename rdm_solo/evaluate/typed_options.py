"""Options of a finished run that the user types again, to change what its folder says."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from omegaconf import DictConfig, OmegaConf

from rdm_solo.cli.unknown_names import dotted, nearest
from rdm_solo.messages import UserError
from rdm_solo.runs import saved_config
from rdm_solo.runs.settings import options


def parsed(words: Sequence[str]) -> dict[str, Any]:
    """Words ``KEY=VALUE`` as dotted keys and values, with numbers and lists as YAML reads them.

    >>> parsed(["dataset.image_size=8", "++dataset.root=/data"])
    {'dataset.image_size': 8, 'dataset.root': '/data'}
    """
    bare = [word.lstrip("+") for word in words]
    try:
        given: Any = OmegaConf.to_container(OmegaConf.from_dotlist(bare))
    except yaml.YAMLError as error:
        raise UserError(f"{' '.join(words)} cannot be read as options KEY=VALUE.") from error
    return dict(options(given))


def of_part(cfg: DictConfig, part: str) -> dict[str, Any]:
    """The options of a part of a command's config that were given, by their dotted names.

    >>> of_part(OmegaConf.create({"backbone": {"name": None, "kwargs": {"width": 8}}}), "backbone")
    {'backbone.kwargs.width': 8}
    """
    plain: Any = OmegaConf.to_container(cfg[part])
    return {name: value for name, value in options(plain, f"{part}.") if value not in (None, {})}


def changed(folder: Path, typed: Mapping[str, Any]) -> DictConfig:
    """The run's config, its references in place, with these values; ValueError for other keys."""
    config = saved_config.with_references(folder)
    # Earlier versions kept no function beside a filter's name.
    known = {"filter.function": None, **dict(dotted(OmegaConf.to_container(config)))}
    for key, value in typed.items():
        if key not in known:
            raise UserError(f"there is no option {key!r} of this run{nearest(key, known)}")
        OmegaConf.update(config, key, value, force_add=True)
    return config
