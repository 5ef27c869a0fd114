"""Warn about risky settings before a run and advise after a collapse."""

from collections.abc import Iterator
from dataclasses import dataclass

from rdm_solo.collapse.rules import DESTROYED, LOST_ACCURACY, RULE, WRONG_WAY
from rdm_solo.filters.schedules import as_schedule
from rdm_solo.methods.chosen_filter import ChosenFilter
from rdm_solo.methods.descriptions import METHODS

LOG = (
    "log(sigma) is negative below sigma = 1: it flips the sign of these directions and amplifies "
    "the smallest ones, so it is not a low-pass filter; use filter=online_log1p. sigma grows with "
    "the square root of the filter's batch size, so the filter changes with batch_size x processes."
)


@dataclass(frozen=True)
class RunSettings:
    """The settings of a run that warnings and advice read."""

    method: str
    chosen: ChosenFilter
    output_dim: int
    optimizer: str
    lr: float  # not scaled by the batch size
    warmup_epochs: float
    max_epochs: int
    precision: str

    @property
    def rate(self) -> str:
        """Name the options of the learning rate, as users set them."""
        warmup = f"scheduler.warmup_epochs={self.warmup_epochs:g} of {self.max_epochs}"
        return f"Here optimizer.lr={self.lr:g} and {warmup}."

    @property
    def weak_filter(self) -> str:
        """Say that logarithms and other online filters are weak."""
        return (
            f"filter={self.chosen.label} is weak under strong augmentation: raise "
            "dataset.views.pipelines.0.crop_scale or use filter=target_pow p=-0.5."
        )


def config_warnings(run: RunSettings, filter_batch: int, smallest_crop: float) -> list[str]:
    """Return a warning for each option that is likely to fail."""
    chosen = run.chosen
    warnings = []
    if chosen.spectral and filter_batch < 2 * run.output_dim:
        warnings.append(
            f"A batch of {filter_batch} rows, over all processes, is less than twice the "
            f"{run.output_dim} output dimensions: some directions are nearly empty and the filter "
            "curve may not be monotone. Lower method.kwargs.proj_output_dim, or raise batch_size."
        )
    if chosen.logarithmic and not chosen.on_target and smallest_crop < 0.5:
        warnings.append(f"{run.weak_filter} Here crops go down to {smallest_crop:g} of the area.")
    if chosen.function == "log" and not chosen.on_target:
        warnings.append(LOG)
    has_short_warmup = run.warmup_epochs < 0.1 * run.max_epochs
    has_high_rate = run.optimizer == "sgd" and run.lr > 0.5
    if chosen.linear and (has_short_warmup or has_high_rate):
        warnings.append(
            "Linear predictors collapse easily, above all with a high learning rate or a short "
            f"warm-up. {run.rate} Halve the rate and double the warm-up, or use "
            "the fixed filter=online_pow p=1."
        )
    return warnings


def advice(kind: str, run: RunSettings, epoch: int = 0) -> str:
    """Return the likeliest cause of a collapse in this run, and what to change."""
    remedy = RULE[kind].remedy or "Try a lower learning rate and a longer warm-up first."
    default = f"{remedy} {run.rate}"
    if remedy == LOST_ACCURACY:
        default += " dataset.views.pipelines.0 has the options of the augmentation."
    if kind == DESTROYED:
        return default
    return next(_causes(kind, run, epoch), default)


def divergence_advice(epoch: int, step: int | None, run: RunSettings, lr: float) -> str:
    """Return the likeliest cause of NaN or infinity, and what to try; ``lr`` is scaled."""
    if (epoch, step) == (1, 1):
        text = (
            "No weight had changed yet, so the learning rate is not the cause: look at the images "
            "and their views."
        )
    else:
        text = (
            "The learning rate is the likeliest cause: try a tenth of it, or a longer warm-up. "
            f"{run.rate} Scaled by the batch size, the rate is {lr:.3g}."
        )
    if run.precision == "16-mixed":
        text += " float16 also overflows above 65504: trainer.precision=bf16-mixed does not."
    if run.chosen.spectral:
        text += " Run with filter=learnable to see whether the filter is the cause."
    return text


def _causes(kind: str, run: RunSettings, epoch: int) -> Iterator[str]:
    """Yield causes that follow from the settings, most likely first."""
    method, chosen = METHODS[run.method], run.chosen
    p = None
    if chosen.p is not None:
        schedule = as_schedule(chosen.p, epochs=run.max_epochs)
        p = schedule(epoch)
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
    if kind == WRONG_WAY:
        return
    # Filters that point the right way may still be too weak.
    if chosen.branch == "online":
        yield f"{run.weak_filter} {run.rate}"
    if chosen.power and p is not None and p > -0.5:
        yield f"p={p:g} is a weak filter: p from -0.5 to -1 keeps the rank higher. {run.rate}"
