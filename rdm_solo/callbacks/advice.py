"""Warnings about settings before a run starts, and advice after a collapse."""

from omegaconf import DictConfig

from rdm_solo.filters.schedules import as_schedule
from rdm_solo.methods.descriptions import METHODS, ChosenFilter
from rdm_solo.spectra.collapse import COMPLETE, WRONG_WAY

GENERAL = "A lower optimizer.lr and a longer scheduler.warmup_epochs are what to try first."
LOG = (
    "log(sigma) is negative below sigma = 1: it flips such directions, and grows in size as sigma "
    "falls; with many of them the filter does not increase. filter=online_log1p does. sigma grows "
    "with the root of the global batch, so the filter changes with the batch size."
)


def warnings_before(cfg: DictConfig, filter_batch: int, smallest_crop: float) -> list[str]:
    """A warning for each setting that is known to go wrong."""
    chosen = ChosenFilter.of(cfg)
    found = _small_batch(cfg, filter_batch) if chosen.spectral else []
    if chosen.logarithmic and not chosen.on_target and smallest_crop < 0.5:
        found.append(
            f"{_weak_online(chosen)} Crops are from {smallest_crop:g} of the area here; on digits "
            "the effective rank fell to 1."
        )
    if chosen.function == "log" and not chosen.on_target:
        found.append(LOG)
    short = cfg.scheduler.warmup_epochs < 0.1 * cfg.max_epochs
    if chosen.linear and (short or (cfg.optimizer.lr > 0.5 and cfg.optimizer.name == "sgd")):
        found.append(_linear(cfg))
    return found


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
            "filter=identity does this by design: neither branch leads the other in rank. "
            "filter=target_pow p=-0.5, or filter=learnable, lifts the target's."
        )
    if chosen.linear:
        return _linear(cfg)
    reasons = _weak_filter(chosen, p, cfg, filter_batch) if chosen.spectral else []
    if described.momentum:
        reasons.append(
            f"The target may follow too fast: raise method.momentum.base_tau "
            f"(now {cfg.method.momentum.base_tau:g})."
        )
    return " ".join([*reasons, GENERAL][:2])


def divergence_advice(epoch: int, step: int | None, cfg: DictConfig, lr: float) -> str:
    """The likeliest cause of NaN or infinity at that step, and what to try; ``lr`` is scaled."""
    rate, warmup = cfg.optimizer.lr, cfg.scheduler.warmup_epochs
    said = (
        "No weight had changed yet, so the learning rate is not the cause: look at the images and "
        "their views."
        if (epoch, step) == (1, 1)
        else f"The learning rate is the likeliest cause (optimizer.lr={rate:g}, which the batch "
        f"scales to {lr:.3g}; scheduler.warmup_epochs={warmup:g}): try a tenth of it, or a longer "
        "warm-up."
    )
    if cfg.trainer.precision == "16-mixed":
        said += (
            " float16 ends at 65504, too: trainer.precision=bf16-mixed has the range of float32."
        )
    if ChosenFilter.of(cfg).spectral:
        said += " filter=learnable shows whether the filter has a part in it."
    return said


def _negative_gap(chosen: ChosenFilter) -> str:
    if chosen.function == "log" and not chosen.on_target:
        return LOG
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
    design = f"method={cfg.method.name} does this by design"
    if kind == COMPLETE and "last_bn" in cfg.method:
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
    reasons = _small_batch(cfg, batch)
    if not chosen.on_target:
        reasons.append(_weak_online(chosen))
    elif chosen.power and p > -0.5:
        reasons.append(f"p={p:g} is a weak filter: p=-0.5 to -1 holds the rank better.")
    return reasons


def _small_batch(cfg: DictConfig, batch: int) -> list[str]:
    k = cfg.method.kwargs.proj_output_dim
    if batch >= 2 * k:
        return []
    return [
        f"A batch of {batch} rows, over all processes, is less than twice the {k} output "
        "dimensions: some directions are empty and the filter curve need not be monotone. Raise "
        "batch_size, or lower method.kwargs.proj_output_dim."
    ]


def _weak_online(chosen: ChosenFilter) -> str:
    return (
        f"filter={chosen.label} is weak under strong augmentation: larger "
        "dataset.views.pipelines.0.crop_scale or filter=target_pow p=-0.5 holds the rank better."
    )


def _linear(cfg: DictConfig) -> str:
    return (
        "A linear predictor may collapse where optimizer.lr is above 0.5 or the warm-up is under "
        f"a tenth of the epochs (here optimizer.lr={cfg.optimizer.lr:g} and "
        f"{cfg.scheduler.warmup_epochs:g} of {cfg.max_epochs} epochs): halve the rate and double "
        "the warm-up, or take filter=online_pow p=1, the same filter computed instead of learned."
    )
