"""What a collapse probably comes from and what helps, in words, from a run's own settings."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig

from rdm_solo.filters.schedules import as_schedule
from rdm_solo.methods.descriptions import METHODS, ChosenFilter, Method
from rdm_solo.spectra.collapse import COMPLETE, WRONG_WAY

__all__ = ["advice"]

GENERAL = "A lower optimizer.lr and a longer scheduler.warmup_epochs are what to try first."


def advice(kind: str, cfg: DictConfig, derived: dict[str, Any], epoch: int = 0) -> str:
    """The likeliest cause of that kind of collapse in that run, and what to change."""
    described, chosen = METHODS[cfg.method.name], ChosenFilter.of(cfg)
    p = None if chosen.p is None else as_schedule(chosen.p, epochs=cfg.max_epochs)(epoch)
    wrong = _wrong_way(chosen, p)
    if wrong:
        return wrong
    if described.on_collapse:
        return described.on_collapse
    if kind == WRONG_WAY and not chosen.absent and not chosen.identity:
        return _gap(chosen)
    if described.symmetric:
        return _symmetric(kind, cfg)
    if chosen.identity:
        return (
            "That is what filter=identity shows by design: neither branch leads the other in rank. "
            "filter=target_pow p=-0.5, or filter=learnable, lifts the target's."
        )
    if chosen.linear:
        return _linear(cfg)
    reasons = [
        _small_batch(chosen, cfg, derived),
        _weak_filter(chosen, p),
        _fast_target(described, cfg),
        GENERAL,
    ]
    return " ".join([reason for reason in reasons if reason][:2])


def _wrong_way(chosen: ChosenFilter, p: float | None) -> str:
    """A power filter that does the opposite of what it is for."""
    if p is None or not chosen.power:
        return ""
    if chosen.on_target and p > 0:
        return (
            f"The filter points the wrong way: sigma^{p:g} on the target lowers its rank. A target "
            "filter needs p < 0; p=-0.5 is a good start."
        )
    if not chosen.on_target and p < 0:
        return (
            f"The filter points the wrong way: sigma^{p:g} raises the online rank. An online "
            "filter must increase with sigma: p > 0; p=1 is a good start."
        )
    return ""


def _gap(chosen: ChosenFilter) -> str:
    if chosen.function == "log" and not chosen.on_target:
        return (
            "log(sigma) changes its sign at sigma = 1, and its size grows again below: with many "
            "singular values under 1 the filter no longer increases. filter=online_log1p does; a "
            "larger global batch makes sigma larger."
        )
    if chosen.spectral:
        what = "decrease on the target" if chosen.on_target else "increase on the online side"
        return (
            f"The filter points the wrong way: it must {what}. `python -m rdm_solo.preview` draws "
            "it; a target filter such as target_pow needs p < 0."
        )
    return (
        "The predictor raises the online rank instead of lowering it, which filters with p < 0 on "
        f"the target cannot do. {GENERAL}"
    )


def _symmetric(kind: str, cfg: DictConfig) -> str:
    name = cfg.method.name
    if kind == COMPLETE:
        keeps = "method.last_bn=true, or method=symsimsiam, keeps the variance"
        return (
            f"That is what method={name} shows by design with method.last_bn="
            f"{str(bool(cfg.method.last_bn)).lower()}: {keeps}, though not the rank; "
            "method=simsiam with a filter keeps both."
        )
    return (
        f"That is what method={name} shows by design: both branches are alike, and nothing lifts "
        "the rank. method=simsiam filter=target_pow p=-0.5 does."
    )


def _linear(cfg: DictConfig) -> str:
    return (
        "A linear predictor collapses where the learning rate is high or the warm-up short (here "
        f"optimizer.lr={cfg.optimizer.lr:g} and {cfg.scheduler.warmup_epochs:g} of "
        f"{cfg.max_epochs} epochs): halve the one and double the other, or take "
        "filter=online_pow p=1, the same filter computed instead of learned."
    )


def _small_batch(chosen: ChosenFilter, cfg: DictConfig, derived: dict[str, Any]) -> str:
    k = cfg.method.kwargs.proj_output_dim
    if not chosen.spectral or derived["filter_batch"] >= 2 * k:
        return ""
    return (
        f"A global batch of {derived['filter_batch']} is less than twice the {k} output "
        "dimensions: raise batch_size, or lower method.kwargs.proj_output_dim."
    )


def _weak_filter(chosen: ChosenFilter, p: float | None) -> str:
    if not chosen.spectral:
        return ""
    if chosen.power and chosen.on_target and p is not None and p > -0.5:
        return f"p={p:g} is a weak filter: p=-0.5 to -1 holds the rank better."
    if not chosen.on_target:
        return (
            f"filter={chosen.label} is weak under strong augmentation: larger crops "
            "(crop_scale of dataset.views) or filter=target_pow p=-0.5 hold the rank better."
        )
    return ""


def _fast_target(described: Method, cfg: DictConfig) -> str:
    if not described.momentum:
        return ""
    return (
        f"The target may follow too fast: raise method.momentum.base_tau "
        f"(now {cfg.method.momentum.base_tau:g})."
    )
