"""Warn about risky settings before a run and advise after a collapse."""

from collections.abc import Iterator

from omegaconf import DictConfig

from rdm_solo.collapse.rules import DESTROYED, RULE, WRONG_WAY
from rdm_solo.filters.schedules import as_schedule
from rdm_solo.methods.chosen_filter import ChosenFilter
from rdm_solo.methods.descriptions import METHODS

LOG = (
    "log(sigma) is negative below sigma = 1: it flips the sign of these directions and amplifies "
    "the smallest ones, so it is not a low-pass filter; use filter=online_log1p. sigma grows with "
    "the square root of the filter's batch size, so the filter changes with batch_size x processes."
)


def config_warnings(cfg: DictConfig, filter_batch: int, smallest_crop: float) -> list[str]:
    """Return a warning for each option that is likely to fail."""
    chosen = ChosenFilter.from_config(cfg)
    k = cfg.method.kwargs.proj_output_dim
    warnings = []
    if chosen.spectral and filter_batch < 2 * k:
        warnings.append(
            f"A batch of {filter_batch} rows, over all processes, is less than twice the {k} "
            "output dimensions: some directions are nearly empty and the filter curve may not be "
            "monotone. Raise batch_size, or lower method.kwargs.proj_output_dim."
        )
    if chosen.logarithmic and not chosen.on_target and smallest_crop < 0.5:
        warnings.append(f"{_weak(chosen)} Here crops go down to {smallest_crop:g} of the area.")
    if chosen.function == "log" and not chosen.on_target:
        warnings.append(LOG)
    has_short_warmup = cfg.scheduler.warmup_epochs < 0.1 * cfg.max_epochs
    has_high_rate = cfg.optimizer.name == "sgd" and cfg.optimizer.lr > 0.5
    if chosen.linear and (has_short_warmup or has_high_rate):
        warnings.append(
            "Linear predictors collapse easily, above all with a high learning rate or a short "
            f"warm-up. {_rate(cfg)} Halve the rate and double the warm-up, or use "
            "the fixed filter=online_pow p=1."
        )
    return warnings


def advice(kind: str, cfg: DictConfig, epoch: int = 0) -> str:
    """Return the likeliest cause of a collapse in this run, and what to change."""
    remedy = RULE[kind].remedy or "Try a lower learning rate and a longer warm-up first."
    default = f"{remedy} {_rate(cfg)}"
    if kind == DESTROYED:
        return default
    return next(_causes(kind, cfg, epoch), default)


def divergence_advice(epoch: int, step: int | None, cfg: DictConfig, lr: float) -> str:
    """Return the likeliest cause of NaN or infinity, and what to try; ``lr`` is scaled."""
    if (epoch, step) == (1, 1):
        text = (
            "No weight had changed yet, so the learning rate is not the cause: look at the images "
            "and their views."
        )
    else:
        text = (
            "The learning rate is the likeliest cause: try a tenth of it, or a longer warm-up. "
            f"{_rate(cfg)} Scaled by the batch size, the rate is {lr:.3g}."
        )
    if cfg.trainer.precision == "16-mixed":
        text += " float16 also overflows above 65504: trainer.precision=bf16-mixed does not."
    if ChosenFilter.from_config(cfg).spectral:
        text += " Run with filter=learnable to see whether the filter is the cause."
    return text


def _causes(kind: str, cfg: DictConfig, epoch: int) -> Iterator[str]:
    """Yield causes that follow from the config, most likely first."""
    method = METHODS[cfg.method.name]
    chosen = ChosenFilter.from_config(cfg)
    p = None
    if chosen.p is not None:
        p = as_schedule(chosen.p, epochs=cfg.max_epochs)(epoch)
    direction = chosen.direction(p)
    if p is not None and chosen.reverses(p):
        yield (
            f"With p={p:g}, below -1, sigma^{1 + p:g} falls as sigma grows: the weakest "
            "directions become the strongest. Exponents between -1 and 0 on the target keep the "
            "order; p=-0.5 is a good start."
        )
    if kind == WRONG_WAY and chosen.function == "log" and not chosen.on_target:
        yield LOG
    if direction == -1 or (kind == WRONG_WAY and direction == 0 and not chosen.symmetric):
        points = "points" if direction == -1 else "may point"
        required_slope = "rise online (p > 0)"
        if chosen.on_target:
            required_slope = "fall on the target (p < 0)"
        yield (
            f"The filter {points} the wrong way: as sigma grows, it must {required_slope}. "
            "`rdm-solo preview` draws it; filter=target_pow p=-0.5 is a good start."
        )
    if method.collapse_advice:
        yield method.collapse_advice
    if method.symmetric or chosen.symmetric:
        option = f"method={method.name}" if method.symmetric else f"filter={chosen.label}"
        yield (
            f"{option} has this effect by design, because nothing raises the target's rank. Use "
            "method=simsiam filter=target_pow p=-0.5 instead."
        )
    if chosen.branch == "online" and kind != WRONG_WAY:
        yield f"{_weak(chosen)} {_rate(cfg)}"
    if chosen.power and p is not None and p > -0.5 and kind != WRONG_WAY:
        yield f"p={p:g} is a weak filter: p from -0.5 to -1 keeps the rank higher. {_rate(cfg)}"


def _weak(chosen: ChosenFilter) -> str:
    return (
        f"filter={chosen.label} is weak under strong augmentation: raise "
        "dataset.views.pipelines.0.crop_scale or use filter=target_pow p=-0.5."
    )


def _rate(cfg: DictConfig) -> str:
    warmup = f"scheduler.warmup_epochs={cfg.scheduler.warmup_epochs:g} of {cfg.max_epochs}"
    return f"Here optimizer.lr={cfg.optimizer.lr:g} and {warmup}."
