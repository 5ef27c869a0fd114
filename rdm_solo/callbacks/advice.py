"""Warnings about settings before a run starts, and advice after a collapse."""

from omegaconf import DictConfig

from rdm_solo.filters.schedules import as_schedule
from rdm_solo.methods.chosen_filter import ChosenFilter
from rdm_solo.methods.descriptions import METHODS
from rdm_solo.spectra.collapse import COMPLETE, DESTROYED, RULE, WRONG_WAY

LOG = (
    "log(sigma) is negative below sigma = 1: it flips these directions and strengthens the "
    "smallest of them, so it is not a low-pass filter; filter=online_log1p is. sigma grows with "
    "the root of the filter's batch, so the filter changes with batch_size x processes."
)
LONG_ROWS = (
    "The filter does make the target's rank the higher one in each batch, but a few very long rows "
    "can undo that when rows are scaled to unit length. Try a lower optimizer.lr or a larger "
    "batch_size."
)
QUEUE = (
    "The target is drawn from a queue of earlier outputs, whose rank can be lower than that of "
    "this step's. Try a lower optimizer.lr or a smaller method.kwargs.queue_size."
)


def warnings_before(cfg: DictConfig, filter_batch: int, smallest_crop: float) -> list[str]:
    """Return a warning for each setting that is known to go wrong."""
    chosen = ChosenFilter.of(cfg)
    warnings = _small_batch(cfg, filter_batch) if chosen.spectral else []
    if chosen.logarithmic and not chosen.on_target and smallest_crop < 0.5:
        warnings.append(f"{_weak(chosen)} Crops are from {smallest_crop:g} of the area here.")
    if chosen.function == "log" and not chosen.on_target:
        warnings.append(LOG)
    short = cfg.scheduler.warmup_epochs < 0.1 * cfg.max_epochs
    if chosen.linear and (short or (cfg.optimizer.lr > 0.5 and cfg.optimizer.name == "sgd")):
        warnings.append(_linear(cfg))
    return warnings


def advice(kind: str, cfg: DictConfig, filter_batch: int, epoch: int = 0) -> str:
    """Return the likeliest cause of a collapse in this run, and what to change."""
    chosen = ChosenFilter.of(cfg)
    p = None if chosen.p is None else as_schedule(chosen.p, epochs=cfg.max_epochs)(epoch)
    general = f"{RULE[kind].remedy} {_rate(cfg)}"
    if kind == DESTROYED:
        return general
    cause = _wrong_filter(chosen, p) or _no_asymmetry(kind, cfg, chosen)
    if kind == WRONG_WAY:
        return cause or _of_gap(cfg, chosen, chosen.direction(p)) or general
    if cause or chosen.linear:
        return cause or _linear(cfg)
    reasons = _small_batch(cfg, filter_batch) if chosen.spectral else []
    if chosen.spectral and not chosen.on_target:
        reasons.append(_weak(chosen))
    elif chosen.power and p is not None and p > -0.5:
        reasons.append(f"p={p:g} is a weak filter: p=-0.5 to -1 holds the rank better.")
    if METHODS[cfg.method.name].momentum:
        reasons.append(f"The target may follow too fast: raise {_tau(cfg)}.")
    return " ".join([*reasons, general][:2])


def divergence_advice(epoch: int, step: int | None, cfg: DictConfig, lr: float) -> str:
    """Return the likeliest cause of NaN or infinity, and what to try; ``lr`` is scaled."""
    text = (
        "No weight had changed yet, so the learning rate is not the cause: look at the images and "
        "their views."
        if (epoch, step) == (1, 1)
        else f"The learning rate is the likeliest cause: try a tenth of it, or a longer warm-up. "
        f"{_rate(cfg)} The batch size scales the rate to {lr:.3g}."
    )
    if cfg.trainer.precision == "16-mixed":
        text += " float16 also overflows above 65504: trainer.precision=bf16-mixed does not."
    if ChosenFilter.of(cfg).spectral:
        text += " filter=learnable shows whether the filter is the cause."
    return text


def _wrong_filter(chosen: ChosenFilter, p: float | None) -> str:
    """Return why the filter is the cause, where it points the wrong way."""
    if chosen.reverses(p):
        return (
            f"With p={p:g}, below -1, sigma^{1 + (p or 0):g} falls as sigma grows: the weakest "
            "directions become the strongest, and either branch may have the higher rank. "
            "Exponents between -1 and 0 on the target keep the order; p=-0.5 is a good start."
        )
    if chosen.direction(p) != -1:
        return ""
    if not chosen.power:
        return _unknown(chosen)
    effect, needs = (
        ("on the target lowers its rank", "A target filter needs p < 0; p=-0.5")
        if chosen.on_target
        else ("raises the online rank", "An online filter needs p > 0; p=1")
    )
    return f"The filter points the wrong way: sigma^{p:g} {effect}. {needs} is a good start."


def _no_asymmetry(kind: str, cfg: DictConfig, chosen: ChosenFilter) -> str:
    """Return why the method is the cause, or what a method without a filter can change."""
    method, name = METHODS[cfg.method.name], f"method={cfg.method.name}"
    if method.on_collapse or not (method.symmetric or chosen.identity):
        return method.on_collapse
    if method.symmetric and kind == COMPLETE and cfg.method.get("last_bn") is False:
        return (
            f"{name} does this by design with method.last_bn=false: method.last_bn=true keeps the "
            "variance, though not the rank; method=simsiam with a filter keeps both."
        )
    if method.symmetric:
        return (
            f"{name} does this by design: both branches are alike, and nothing raises the rank. "
            "method=simsiam filter=target_pow p=-0.5 does."
        )
    differ = ["the queue that the target is drawn from"] if method.neighbours else []
    differ += ["the target network's lag"] if method.momentum else []
    only = f"except for {' and '.join(differ)}, which does not prevent a collapse" if differ else ""
    return (
        f"filter=identity does this by design: both branches are alike {only}".rstrip() + ". "
        "filter=target_pow p=-0.5 and filter=learnable raise the target's rank."
    )


def _of_gap(cfg: DictConfig, chosen: ChosenFilter, direction: int | None) -> str:
    """Return why the online branch leads, where the filter does not point the wrong way."""
    method = METHODS[cfg.method.name]
    if chosen.function == "log" and not chosen.on_target:
        return LOG
    if not direction:
        return "" if direction is None else _unknown(chosen)
    if method.momentum:
        return (
            "The filter does make the target's rank the higher one, but the target network lags "
            f"behind: lower {_tau(cfg)}, so that it follows faster."
        )
    return QUEUE if method.neighbours else LONG_ROWS


def _unknown(chosen: ChosenFilter) -> str:
    what = "fall on the target" if chosen.on_target else "rise on the online side"
    return (
        f"The filter may point the wrong way: as sigma grows, it must {what}. `python -m "
        "rdm_solo.preview` draws it; filter=target_pow p=-0.5 is a good start."
    )


def _small_batch(cfg: DictConfig, batch: int) -> list[str]:
    k = cfg.method.kwargs.proj_output_dim
    text = (
        f"A batch of {batch} rows, over all processes, is less than twice the {k} output "
        "dimensions: some directions are nearly empty and the filter curve need not be monotone. "
        "Raise batch_size, or lower method.kwargs.proj_output_dim."
    )
    return [text] if batch < 2 * k else []


def _weak(chosen: ChosenFilter) -> str:
    return (
        f"filter={chosen.label} is weak under strong augmentation: larger "
        "dataset.views.pipelines.0.crop_scale or filter=target_pow p=-0.5 holds the rank better."
    )


def _linear(cfg: DictConfig) -> str:
    return (
        "Linear predictors collapse easily, above all with a high learning rate or a short "
        f"warm-up. {_rate(cfg)} Halve the rate and double the warm-up, or use filter=online_pow "
        "p=1, which is fixed."
    )


def _tau(cfg: DictConfig) -> str:
    return f"method.momentum.base_tau (now {cfg.method.momentum.base_tau:g})"


def _rate(cfg: DictConfig) -> str:
    warmup = f"scheduler.warmup_epochs={cfg.scheduler.warmup_epochs:g} of {cfg.max_epochs}"
    return f"Here optimizer.lr={cfg.optimizer.lr:g} and {warmup}."
