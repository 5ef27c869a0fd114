"""Names that people read: of a run, its filter and its exponent."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf

__all__ = ["exponent", "filter_name", "title"]

METHODS = {
    "simsiam": "SimSiam",
    "byol": "BYOL",
    "swav": "SwAV",
    "dino": "DINO",
    "symsimsiam": "SymSimSiam",
    "vanilla": "Vanilla",
}


FILTERS = {
    "linear": "linear",
    "identity": "identity",
    "online_pow": "g(σ) = σ^{p}",
    "online_log": "g(σ) = log σ",
    "online_log1p": "g(σ) = log(1 + σ)",
    "online_log1p_sq": "g(σ) = log(1 + σ²)",
    "target_pow": "h(σ) = σ^{p}",
}


def filter_name(cfg: Any) -> str:
    """The filter's name; a function put in the place of a known filter's goes by its own.

    >>> known = {"name": "online_log1p", "branch": "online", "function": "torch.asinh"}
    >>> filter_name(OmegaConf.create({"filter": known}))
    'online_torch.asinh'
    """
    chosen = cfg.filter
    if chosen.get("function") is None or chosen.name not in FILTERS:
        return str(chosen.name)
    return f"{chosen.branch}_{chosen.function}"


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
    words = [cfg.method.name]
    if cfg.filter.name != "none":
        words.append(filter_name(cfg))
    if cfg.p is not None:
        words.append("p scheduled" if OmegaConf.is_config(cfg.p) else f"p = {cfg.p:g}")
    return ", ".join([*words, cfg.dataset.name])
