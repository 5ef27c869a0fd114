"""Names that people read: of an exponent and of a run."""

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rdm_solo.messages import finite
from rdm_solo.methods.chosen_filter import ChosenFilter


def exponent(p: Any) -> str:
    """An exponent, or a schedule of one, as text.

    >>> exponent(-0.5), exponent({"schedule": "linear", "start": -0.1, "end": -0.5})
    ('-0.5', '(-0.1…-0.5, linear)')
    """
    if p is None:
        return ""
    if isinstance(p, (int, float)):
        return f"{p:g}"
    if not isinstance(p, Mapping) or finite(p.get("start")) is None:
        return str(p)[:40]  # of a run that was refused
    return f"({p['start']:g}…{p['end']:g}, {p['schedule']})" if "end" in p else f"{p['start']:g}"


def title(cfg: DictConfig) -> str:
    """A run in a few words: method, filter, exponent, data."""
    words, chosen = [cfg.method.name], ChosenFilter.of(cfg)
    if not chosen.absent:
        words.append(chosen.label)
    if cfg.p is not None:
        words.append("p scheduled" if OmegaConf.is_config(cfg.p) else f"p = {cfg.p:g}")
    return ", ".join([*words, cfg.dataset.name])
