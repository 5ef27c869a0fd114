"""Names that people read: of a run, its filter and its exponent."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf

from rdm_solo.methods.descriptions import ChosenFilter

__all__ = ["exponent", "filter_name", "title"]


def filter_name(cfg: Any) -> str:
    """The filter's name; a shipped filter with another function goes by branch and function."""
    return ChosenFilter.of(cfg).label


def exponent(p: Any) -> str:
    """An exponent, or a schedule of one, as text.

    >>> exponent(-0.5), exponent({"schedule": "linear", "start": -0.1, "end": -0.5})
    ('-0.5', '(-0.1…-0.5, linear)')
    """
    if p is None or isinstance(p, (int, float)):
        return "" if p is None else f"{p:g}"
    return f"({p['start']:g}…{p['end']:g}, {p['schedule']})" if "end" in p else f"{p['start']:g}"


def title(cfg: DictConfig) -> str:
    """A run in a few words: method, filter, exponent, data."""
    words, chosen = [cfg.method.name], ChosenFilter.of(cfg)
    if not chosen.absent:
        words.append(chosen.label)
    if cfg.p is not None:
        words.append("p scheduled" if OmegaConf.is_config(cfg.p) else f"p = {cfg.p:g}")
    return ", ".join([*words, cfg.dataset.name])
