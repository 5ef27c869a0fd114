"""Warnings about settings before a run starts, and advice after a collapse."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from omegaconf import DictConfig

from rdm_solo.filters.schedules import as_schedule
from rdm_solo.methods.chosen_filter import ChosenFilter
from rdm_solo.methods.descriptions import METHODS, Method
from rdm_solo.spectra.collapse import COMPLETE, WRONG_WAY

GENERAL = "A lower optimizer.lr and a longer scheduler.warmup_epochs are what to try first."
LOG = (
    "log(sigma) is negative below sigma = 1: it flips these directions and strengthens the "
    "smallest of them, so that it is no low-pass filter. filter=online_log1p is one. sigma grows "
    "with the root of the filter's batch, so the filter changes with batch_size x processes."
)


def warnings_before(cfg: DictConfig, filter_batch: int, smallest_crop: float) -> list[str]:
    """A warning for each setting that is known to go wrong."""
    chosen = ChosenFilter.of(cfg)
    found = _small_batch(cfg, filter_batch) if chosen.spectral else []
    if chosen.logarithmic and not chosen.on_target and smallest_crop < 0.5:
        found.append(f"{_weak_online(chosen)} Crops are from {smallest_crop:g} of the area here.")
    if _online_log(chosen):
        found.append(LOG)
    short = cfg.scheduler.warmup_epochs < 0.1 * cfg.max_epochs
    if chosen.linear and (short or (cfg.optimizer.lr > 0.5 and cfg.optimizer.name == "sgd")):
        found.append(_linear(cfg))
    return found


@dataclass(frozen=True)
class Collapse:
    """A kind of collapse, and what the run is in which it was found."""

    kind: str
    cfg: DictConfig
    filter_batch: int
    p: float | None  # in that epoch

    @cached_property
    def method(self) -> Method:
        return METHODS[self.cfg.method.name]

    @cached_property
    def chosen(self) -> ChosenFilter:
        return ChosenFilter.of(self.cfg)

    @property
    def negative_gap(self) -> bool:
        return self.kind == WRONG_WAY

    @property
    def direction(self) -> int | None:
        return self.chosen.direction(self.p)


# The likeliest cause and what to change, for the first of the cases that a collapse belongs to.
CASES: tuple[tuple[Callable[[Collapse], Any], Callable[[Collapse], str]], ...] = (
    (lambda it: it.chosen.reverses(it.p), lambda it: _reversed(it)),
    (lambda it: it.direction == -1, lambda it: _wrong_way(it)),
    (lambda it: it.method.on_collapse, lambda it: it.method.on_collapse),
    (lambda it: it.method.symmetric, lambda it: _symmetric(it.kind, it.cfg)),
    (lambda it: it.chosen.identity and it.method.neighbours, lambda it: QUEUE_ALONE),
    (lambda it: it.chosen.identity and it.method.momentum, lambda it: LAG_ALONE),
    (lambda it: it.chosen.identity, lambda it: IDENTITY),
    (lambda it: it.negative_gap and _online_log(it.chosen), lambda it: LOG),
    (lambda it: it.negative_gap and it.direction == 0, lambda it: _unknown(it.chosen)),
    (lambda it: it.negative_gap and it.direction and it.method.momentum, lambda it: _lag(it.cfg)),
    (lambda it: it.negative_gap and it.direction and it.method.neighbours, lambda it: QUEUE),
    (lambda it: it.negative_gap and it.direction, lambda it: LONG_ROWS),
    (lambda it: it.negative_gap, lambda it: f"{PREDICTOR} {GENERAL}"),
    (lambda it: it.chosen.linear, lambda it: _linear(it.cfg)),
    (lambda it: True, lambda it: " ".join([*_weak(it), GENERAL][:2])),
)
IDENTITY = (
    "filter=identity does this by design: neither branch leads the other in rank. "
    "filter=target_pow p=-0.5 and filter=learnable raise the target's rank above the online one's."
)
LAG_ALONE = (
    "With filter=identity the branches differ by the target network's lag alone, which does not "
    "prevent a collapse. filter=target_pow p=-0.5 and filter=learnable do more."
)
QUEUE_ALONE = (
    "With filter=identity only the queue that the target is drawn from (of NNBYOL, the target "
    "network's lag, too) makes the branches differ, which does not prevent a collapse. "
    "filter=target_pow p=-0.5 and filter=learnable do more."
)
QUEUE = (
    "The target is drawn from a queue of earlier outputs, whose rank can be lower than that of "
    "this step's. A lower optimizer.lr, or a smaller method.kwargs.queue_size, is what to try "
    "first."
)
PREDICTOR = (
    "The predictor raises the online rank instead of lowering it. filter=target_pow p=-0.5 lifts "
    "the target's instead, in each batch."
)
LONG_ROWS = (
    "The filter does make the target's rank the higher one in each batch, but a few very long rows "
    "can undo that where rows are scaled to unit length. A lower optimizer.lr, or a larger "
    "batch_size, is what to try first."
)


def advice(kind: str, cfg: DictConfig, filter_batch: int, epoch: int = 0) -> str:
    """The likeliest cause of that kind of collapse in that run, and what to change."""
    p = ChosenFilter.of(cfg).p
    p = None if p is None else as_schedule(p, epochs=cfg.max_epochs)(epoch)
    collapse = Collapse(kind, cfg, filter_batch, p)
    return next(says(collapse) for applies, says in CASES if applies(collapse))


def divergence_advice(epoch: int, step: int | None, cfg: DictConfig, lr: float) -> str:
    """The likeliest cause of NaN or infinity at that step, and what to try; ``lr`` is scaled."""
    rate, warmup = cfg.optimizer.lr, cfg.scheduler.warmup_epochs
    said = (
        "No weight had changed yet, so the learning rate is not the cause: look at the images and "
        "their views."
        if (epoch, step) == (1, 1)
        else f"The learning rate is the likeliest cause (optimizer.lr={rate:g}, scaled by the "
        f"batch size to {lr:.3g}; scheduler.warmup_epochs={warmup:g}): try a tenth of it, or a "
        "longer warm-up."
    )
    if cfg.trainer.precision == "16-mixed":
        said += " float16 also overflows above 65504: trainer.precision=bf16-mixed does not."
    if ChosenFilter.of(cfg).spectral:
        said += " filter=learnable shows whether the filter is the cause."
    return said


def _online_log(chosen: ChosenFilter) -> bool:
    return chosen.function == "log" and not chosen.on_target


def _reversed(it: Collapse) -> str:
    return (
        f"With p={it.p:g}, below -1, sigma^{1 + (it.p or 0):g} falls as sigma grows: the weakest "
        "directions become the strongest, and either branch may have the higher rank. Exponents "
        "between -1 and 0 on the target keep the order; p=-0.5 is a good start."
    )


def _wrong_way(it: Collapse) -> str:
    if not it.chosen.power:
        return _unknown(it.chosen)
    effect, needs = (
        ("on the target lowers its rank", "A target filter needs p < 0; p=-0.5")
        if it.chosen.on_target
        else ("raises the online rank", "An online filter needs p > 0; p=1")
    )
    return f"The filter points the wrong way: sigma^{it.p:g} {effect}. {needs} is a good start."


def _unknown(chosen: ChosenFilter) -> str:
    what = "fall on the target" if chosen.on_target else "rise on the online side"
    return (
        f"The filter may point the wrong way: as sigma grows, it must {what}. `python -m "
        "rdm_solo.preview` draws it; filter=target_pow p=-0.5 is a good start."
    )


def _lag(cfg: DictConfig) -> str:
    return (
        "The filter does make the target's rank the higher one, but the target is another network, "
        "which lags behind: lower method.momentum.base_tau, so that it follows faster (now "
        f"{cfg.method.momentum.base_tau:g})."
    )


def _symmetric(kind: str, cfg: DictConfig) -> str:
    design = f"method={cfg.method.name} does this by design"
    if kind == COMPLETE and cfg.method.get("last_bn") is False:
        return (
            f"{design} with method.last_bn=false: method.last_bn=true keeps the variance, though "
            "not the rank; method=simsiam with a filter keeps both."
        )
    return (
        f"{design}: both branches are alike, and nothing lifts the rank. method=simsiam "
        "filter=target_pow p=-0.5 does."
    )


def _weak(it: Collapse) -> list[str]:
    """Why a spectral filter may be too weak, and a target too fast."""
    reasons = _small_batch(it.cfg, it.filter_batch) if it.chosen.spectral else []
    if it.chosen.spectral and not it.chosen.on_target:
        reasons.append(_weak_online(it.chosen))
    elif it.chosen.power and it.p is not None and it.p > -0.5:
        reasons.append(f"p={it.p:g} is a weak filter: p=-0.5 to -1 holds the rank better.")
    if it.method.momentum:
        reasons.append(
            f"The target may follow too fast: raise method.momentum.base_tau "
            f"(now {it.cfg.method.momentum.base_tau:g})."
        )
    return reasons


def _small_batch(cfg: DictConfig, batch: int) -> list[str]:
    k = cfg.method.kwargs.proj_output_dim
    if batch >= 2 * k:
        return []
    return [
        f"A batch of {batch} rows, over all processes, is less than twice the {k} output "
        "dimensions: some directions are nearly empty and the filter curve need not be monotone. "
        "Raise batch_size, or lower method.kwargs.proj_output_dim."
    ]


def _weak_online(chosen: ChosenFilter) -> str:
    return (
        f"filter={chosen.label} is weak under strong augmentation: larger "
        "dataset.views.pipelines.0.crop_scale or filter=target_pow p=-0.5 holds the rank better."
    )


def _linear(cfg: DictConfig) -> str:
    return (
        "Linear predictors collapse easily, with a high rate or a short warm-up above all (here "
        f"optimizer.lr={cfg.optimizer.lr:g} and {cfg.scheduler.warmup_epochs:g} of "
        f"{cfg.max_epochs} epochs): halve the rate and double the warm-up, or take "
        "filter=online_pow p=1, a fixed filter in its place."
    )
