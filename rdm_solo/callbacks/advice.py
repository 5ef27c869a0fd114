"""Warnings about settings before a run starts, and advice after a collapse."""

from dataclasses import dataclass

from omegaconf import DictConfig

from rdm_solo.filters.schedules import as_schedule
from rdm_solo.methods.chosen_filter import ChosenFilter
from rdm_solo.methods.descriptions import METHODS, Method
from rdm_solo.spectra.collapse import COMPLETE, DESTROYED, RULE, WRONG_WAY

START = "filter=target_pow p=-0.5 is a good start."
LOG = (
    "log(sigma) is negative below sigma = 1: it flips these directions and strengthens the "
    "smallest of them, so it is not a low-pass filter; filter=online_log1p is. sigma grows with "
    "the root of the filter's batch, so the filter changes with batch_size x processes."
)


def warnings_before(cfg: DictConfig, filter_batch: int, smallest_crop: float) -> list[str]:
    """Return a warning for each setting that is known to go wrong."""
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


def advice(kind: str, cfg: DictConfig, filter_batch: int, epoch: int = 0) -> str:
    """Return the likeliest cause of a collapse in this run, and what to change."""
    p = ChosenFilter.of(cfg).p
    p = None if p is None else as_schedule(p, epochs=cfg.max_epochs)(epoch)
    setting = Setting(cfg, ChosenFilter.of(cfg), METHODS[cfg.method.name], filter_batch, p)
    general = f"{RULE[kind].remedy} {_rate(cfg)}"
    if kind == DESTROYED:
        return general
    causes = [*_wrong_filter(setting), *_no_asymmetry(setting, kind)]
    causes += _of_gap(setting) if kind == WRONG_WAY else []
    return causes[0] if causes else " ".join([*_too_weak(setting, kind), general][:2])


def divergence_advice(epoch: int, step: int | None, cfg: DictConfig, lr: float) -> str:
    """Return the likeliest cause of NaN or infinity, and what to try; ``lr`` is scaled."""
    if (epoch, step) == (1, 1):
        text = (
            "No weight had changed yet, so the learning rate is not the cause: look at the images "
            "and their views."
        )
    else:
        text = (
            f"The learning rate is the likeliest cause (scaled by the batch size to {lr:.3g}): "
            f"try a tenth of it, or a longer warm-up. {_rate(cfg)}"
        )
    if cfg.trainer.precision == "16-mixed":
        text += " float16 also overflows above 65504: trainer.precision=bf16-mixed does not."
    if ChosenFilter.of(cfg).spectral:
        text += " filter=learnable shows whether the filter is the cause."
    return text


@dataclass(frozen=True)
class Setting:
    """A run's setting in the epoch of a collapse."""

    cfg: DictConfig
    chosen: ChosenFilter
    method: Method
    filter_batch: int
    p: float | None

    @property
    def tau(self) -> str:
        return f"method.momentum.base_tau (now {self.cfg.method.momentum.base_tau:g})"


def _wrong_filter(it: Setting) -> list[str]:
    """Why the filter is the cause, where it points the wrong way."""
    if it.chosen.reverses(it.p):
        return [
            f"With p={it.p:g}, below -1, sigma^{1 + (it.p or 0):g} falls as sigma grows: the "
            "weakest directions become the strongest, and either branch may have the higher rank. "
            "Exponents between -1 and 0 on the target keep the order; p=-0.5 is a good start."
        ]
    if it.chosen.direction(it.p) != -1:
        return []
    if not it.chosen.power:
        return [_unknown(it.chosen)]
    effect, needs = (
        ("on the target lowers its rank", "A target filter needs p < 0; p=-0.5")
        if it.chosen.on_target
        else ("raises the online rank", "An online filter needs p > 0; p=1")
    )
    return [f"The filter points the wrong way: sigma^{it.p:g} {effect}. {needs} is a good start."]


def _no_asymmetry(it: Setting, kind: str) -> list[str]:
    """Why the method is the cause, and what a method without a filter can change."""
    name = f"method={it.cfg.method.name}"
    if it.method.on_collapse:
        return [it.method.on_collapse]
    if it.method.symmetric and kind == COMPLETE and it.cfg.method.get("last_bn") is False:
        return [
            f"{name} does this by design with method.last_bn=false: method.last_bn=true keeps the "
            "variance, though not the rank; method=simsiam with a filter keeps both."
        ]
    if it.method.symmetric:
        return [
            f"{name} does this by design: both branches are alike, and nothing raises the rank. "
            "method=simsiam filter=target_pow p=-0.5 does."
        ]
    if not it.chosen.identity:
        return []
    differ = ["the queue that the target is drawn from"] if it.method.neighbours else []
    differ += ["the target network's lag"] if it.method.momentum else []
    by_design = (
        f"Only {' and '.join(differ)} makes the branches differ"
        if differ
        else ("Neither branch leads the other in rank")
    )
    return [
        f"filter=identity does this by design. {by_design}, which does not prevent a collapse. "
        "filter=target_pow p=-0.5 and filter=learnable raise the target's rank."
    ]


def _of_gap(it: Setting) -> list[str]:
    """Why the online branch leads, where the filter does not point the wrong way."""
    direction = it.chosen.direction(it.p)
    if _online_log(it.chosen):
        return [LOG]
    if direction == 0:
        return [_unknown(it.chosen)]
    if direction is None:
        return []
    if it.method.momentum:
        return [
            "The filter does make the target's rank the higher one, but the target network lags "
            f"behind: lower {it.tau}, so that it follows faster."
        ]
    if it.method.neighbours:
        return [
            "The target is drawn from a queue of earlier outputs, whose rank can be lower than "
            "that of this step's. Try a lower optimizer.lr or a smaller method.kwargs.queue_size."
        ]
    return [
        "The filter does make the target's rank the higher one in each batch, but a few very long "
        "rows can undo that when rows are scaled to unit length. Try a lower optimizer.lr or a "
        "larger batch_size."
    ]


def _too_weak(it: Setting, kind: str) -> list[str]:
    """Why the filter may be too weak, and the target too fast."""
    if kind == WRONG_WAY:
        return []
    if it.chosen.linear:
        return [_linear(it.cfg)]
    causes = _small_batch(it.cfg, it.filter_batch) if it.chosen.spectral else []
    if it.chosen.spectral and not it.chosen.on_target:
        causes.append(_weak_online(it.chosen))
    elif it.chosen.power and it.p is not None and it.p > -0.5:
        causes.append(f"p={it.p:g} is a weak filter: p=-0.5 to -1 holds the rank better.")
    if it.method.momentum:
        causes.append(f"The target may follow too fast: raise {it.tau}.")
    return causes


def _online_log(chosen: ChosenFilter) -> bool:
    return chosen.function == "log" and not chosen.on_target


def _unknown(chosen: ChosenFilter) -> str:
    what = "fall on the target" if chosen.on_target else "rise on the online side"
    return (
        f"The filter may point the wrong way: as sigma grows, it must {what}. `python -m "
        f"rdm_solo.preview` draws it; {START}"
    )


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
        "Linear predictors collapse easily, above all with a high learning rate or a short "
        "warm-up: halve the rate and double the warm-up, or use filter=online_pow p=1, which is "
        f"fixed. {_rate(cfg)}"
    )


def _rate(cfg: DictConfig) -> str:
    warmup = f"scheduler.warmup_epochs={cfg.scheduler.warmup_epochs:g} of {cfg.max_epochs}"
    return f"Here optimizer.lr={cfg.optimizer.lr:g} and {warmup}."
