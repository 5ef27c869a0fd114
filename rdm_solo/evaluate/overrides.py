"""Options that the user passes to a command on a finished run, to change its recorded config."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rdm_solo.messages import UserError, suggest
from rdm_solo.runs import saved_config
from rdm_solo.runs.settings import options


def passed(cfg: DictConfig, part: str) -> dict[str, Any]:
    """Return the options of one part of a command's config that have a value, by dotted names.

    >>> passed(OmegaConf.create({"backbone": {"name": None, "kwargs": {"width": 8}}}), "backbone")
    {'backbone.kwargs.width': 8}
    """
    plain: Any = OmegaConf.to_container(OmegaConf.create(cfg.get(part) or {}))
    return {name: value for name, value in options(plain, f"{part}.") if value not in (None, {})}


def changed(folder: Path, overrides: Mapping[str, Any]) -> DictConfig:
    """Return the run's config, its references in place, with these values."""
    config = saved_config.with_references(folder)
    plain: Any = OmegaConf.to_container(config)
    names = dict(options(plain))
    for key, value in overrides.items():
        if key not in names:
            hint = suggest(key, names) or "."
            raise UserError(f"there is no option {key!r} of this run{hint}")
        OmegaConf.update(config, key, value, force_add=True)
    return config
