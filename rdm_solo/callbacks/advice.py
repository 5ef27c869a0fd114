"""What a collapse probably comes from and what helps, in words, from a run's own settings."""

from omegaconf import DictConfig

from rdm_solo.filters.schedules import as_schedule
from rdm_solo.methods.descriptions import METHODS, ChosenFilter
from rdm_solo.spectra.collapse import COMPLETE, WRONG_WAY

GENERAL = "A lower optimizer.lr and a longer scheduler.warmup_epochs are what to try first."


def advice(kind: str, cfg: DictConfig, filter_batch: int, epoch: int = 0) -> str:
    """The likeliest cause of that kind of collapse in that run, and what to change."""
    described, chosen = METHODS[cfg.method.name], ChosenFilter.of(cfg)
    p = None if chosen.p is None else as_schedule(chosen.p, epochs=cfg.max_epochs)(epoch)
    if p and chosen.power and (p > 0) == chosen.on_target:
        effect, needs = (
            ("on the target lowers its rank", "A target filter needs p < 0; p=-0.5")
            if chosen.on_target
            else ("raises the online rank", "An online filter needs p > 0; p=1")
        )
        return f"The filter points the wrong way: sigma^{p:g} {effect}. {needs} is a good start."
    if described.on_collapse:
        return described.on_collapse
    if kind == WRONG_WAY and not chosen.absent and not chosen.identity:
        return _negative_gap(chosen)
    if described.symmetric:
        return _symmetric(kind, cfg)
    if chosen.identity:
        return (
            "That is what filter=identity shows by design: neither branch leads the other in rank. "
            "filter=target_pow p=-0.5, or filter=learnable, lifts the target's."
        )
    if chosen.linear:
        return (
            "A linear predictor collapses where the learning rate is high or the warm-up short "
            f"(here optimizer.lr={cfg.optimizer.lr:g} and {cfg.scheduler.warmup_epochs:g} of "
            f"{cfg.max_epochs} epochs): halve the one and double the other, or take "
            "filter=online_pow p=1, the same filter computed instead of learned."
        )
    reasons = _weak_filter(chosen, p, cfg, filter_batch) if chosen.spectral else []
    if described.momentum:
        reasons.append(
            f"The target may follow too fast: raise method.momentum.base_tau "
            f"(now {cfg.method.momentum.base_tau:g})."
        )
    return " ".join([*reasons, GENERAL][:2])


def _negative_gap(chosen: ChosenFilter) -> str:
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
    design = f"That is what method={cfg.method.name} shows by design"
    if kind == COMPLETE:
        return (
            f"{design} with method.last_bn={str(cfg.method.last_bn).lower()}: method.last_bn=true, "
            "or method=symsimsiam, keeps the variance, though not the rank; method=simsiam with a "
            "filter keeps both."
        )
    return (
        f"{design}: both branches are alike, and nothing lifts the rank. method=simsiam "
        "filter=target_pow p=-0.5 does."
    )


def _weak_filter(chosen: ChosenFilter, p: float | None, cfg: DictConfig, batch: int) -> list[str]:
    """Why a spectral filter may be too weak."""
    reasons, k = [], cfg.method.kwargs.proj_output_dim
    if batch < 2 * k:
        reasons.append(
            f"A global batch of {batch} is less than twice the {k} output dimensions: raise "
            "batch_size, or lower method.kwargs.proj_output_dim."
        )
    if not chosen.on_target:
        reasons.append(
            f"filter={chosen.label} is weak under strong augmentation: larger crops "
            "(crop_scale of dataset.views) or filter=target_pow p=-0.5 hold the rank better."
        )
    elif chosen.power and p > -0.5:
        reasons.append(f"p={p:g} is a weak filter: p=-0.5 to -1 holds the rank better.")
    return reasons
