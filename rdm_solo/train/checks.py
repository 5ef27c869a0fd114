"""Check a config's values before torch is imported; an invalid one raises a UserError."""

from typing import Any

from omegaconf import DictConfig, OmegaConf

from rdm_solo.collapse.rules import RULES, WRONG_WAY
from rdm_solo.filters.schedules import as_schedule
from rdm_solo.ground import packages
from rdm_solo.ground.errors import UserError
from rdm_solo.ground.values import check_bool, check_choice, check_integer, check_number
from rdm_solo.methods.descriptions import method

# Half- and double-precision weights are refused: batch norms and spectra need float32.
PRECISIONS = ("32-true", "16-mixed", "bf16-mixed")

# Views and spectra are computed in float64, which Apple's GPUs (mps) do not have.
ACCELERATORS = ("auto", "cpu", "gpu", "cuda")
ABSENT = object()

# Lengths of warm-ups in epochs, at most max_epochs.
WARM_UPS = ("scheduler.warmup_epochs", "method.kwargs.warmup_teacher_temperature_epochs")


def _check_devices(name: str, value: object) -> None:
    if value not in ("auto", -1) and not OmegaConf.is_list(value):  # -1: Lightning's "all GPUs"
        check_integer(name, value, 1, alternative="a list of GPUs, or auto")


# The schema: each option's check and its limits.
CHECKS: dict[str, tuple[Any, ...]] = {
    "batch_size": (check_integer, 2),
    "max_epochs": (check_integer, 1),
    "threads": (check_integer, 1),
    "seed": (check_integer, 0, 2**32 - 1),
    "overwrite": (check_bool,),
    "share_epochs": (check_bool,),
    "knn.k": (check_integer, 1),
    "knn.every_n_epochs": (check_integer, 0),
    "knn.temperature": (check_number, 1e-6),
    "checkpoint.every_n_epochs": (check_integer, 1),
    "checkpoint.min_seconds": (check_number, 0),
    "checkpoint.keep": (check_integer, 0),
    "checkpoint.best": (check_bool,),
    "diagnostics.max_rows": (check_integer, 1),
    "diagnostics.max_dim": (check_integer, 1),
    "diagnostics.max_features_dim": (check_integer, 0),
    "diagnostics.sample": (check_integer, 1),
    "diagnostics.every_n_epochs": (check_integer, 0),
    "pictures.every_n_epochs": (check_integer, 0),
    "optimizer.name": (check_choice, ("sgd", "lars", "adam", "adamw")),
    "optimizer.lr": (check_number, 0),
    "optimizer.classifier_lr": (check_number, 0),
    "optimizer.weight_decay": (check_number, 0),
    "optimizer.momentum": (check_number, 0, 1),
    "optimizer.trust_coeff": (check_number, 0),
    "optimizer.trust_clip": (check_bool,),
    "optimizer.exclude_bias_n_norm": (check_bool,),
    "optimizer.fused": (check_bool,),
    "scheduler.warmup_epochs": (check_number, 0),
    "scheduler.warmup_start_lr": (check_number, 0),
    "scheduler.min_lr": (check_number, 0),
    "backbone.stem": (check_choice, ("small", "imagenet")),
    "backbone.channels_last": (check_bool,),
    "backbone.kwargs.zero_init_residual": (check_bool,),
    "backbone.kwargs.width": (check_integer, 1),
    "backbone.kwargs.in_channels": (check_integer, 1),
    "filter.momentum": (check_number, 0, 0.999999),
    "filter.solver": (check_choice, ("auto", "eigh", "products")),
    "method.stop_gradient": (check_choice, ("target", "online", "none")),
    "method.loss": (check_choice, ("cosine", "mse", "iso")),
    "method.centring": (check_bool,),
    "method.sharpening": (check_bool,),
    "method.last_bn": (check_bool,),
    "method.kwargs.proj_hidden_dim": (check_integer, 1),
    "method.kwargs.proj_output_dim": (check_integer, 1),
    "method.kwargs.pred_hidden_dim": (check_integer, 1),
    "method.momentum.base_tau": (check_number, 0, 1),
    "method.momentum.final_tau": (check_number, 0, 1),
    "method.momentum.classifier": (check_bool,),
    "trainer.precision": (check_choice, PRECISIONS),
    "trainer.benchmark": (check_bool,),
    "trainer.accelerator": (check_choice, ACCELERATORS),
    "trainer.devices": (_check_devices,),
    "trainer.num_nodes": (check_integer, 1),
    "trainer.accumulate_grad_batches": (check_integer, 1),
    "trainer.sync_batchnorm": (check_bool,),
    "trainer.gradient_clip_val": (check_number, 0),
    "trainer.enable_progress_bar": (check_bool,),
    "watch.stop": (check_bool,),
}
# A value that an option may have besides those that its check allows.
ALTERNATIVES: dict[str, str | None] = {
    "threads": None,
    "checkpoint.every_n_epochs": None,
    "checkpoint.min_seconds": None,
    "optimizer.fused": None,
    "trainer.benchmark": None,
    "trainer.precision": None,
    "trainer.sync_batchnorm": None,
    "trainer.gradient_clip_val": None,
    "backbone.kwargs.zero_init_residual": None,
    "checkpoint.keep": "all",
    "watch.stop": "notes",
}
for rule in RULES:
    CHECKS[f"watch.{rule.option}"] = (check_number, *rule.limits)
    ALTERNATIVES[f"watch.{rule.option}"] = None
    if rule.kind == WRONG_WAY:  # a number of epochs
        CHECKS[f"watch.{rule.option}"] = (check_integer, *rule.limits)


def check(cfg: DictConfig) -> None:
    """Raise UserError if a value of the config is invalid."""
    for name in CHECKS:
        section, _, option = name.partition(".")
        if option and not OmegaConf.is_dict(cfg.get(section)):
            value = cfg.get(section)
            hint = f"pass single ones, such as {name}=..."
            if section in ("backbone", "optimizer"):
                hint = f"did you mean {section}.name={value}?"
            raise UserError(f"{section}={value} would replace all options of {section}; {hint}")
    for name, (check_value, *limits) in CHECKS.items():
        value = OmegaConf.select(cfg, name, default=ABSENT)
        if value is ABSENT:
            continue
        if name not in ALTERNATIVES:
            check_value(name, value, *limits)
        elif value != ALTERNATIVES[name]:
            check_value(name, value, *limits, alternative=ALTERNATIVES[name] or "null")
    for name in WARM_UPS:
        epochs = check_number(name, OmegaConf.select(cfg, name) or 0, 0)
        if epochs > cfg.max_epochs:
            raise UserError(f"{name}={epochs:g} is longer than max_epochs={cfg.max_epochs}.")
    if cfg.checkpoint.best and not cfg.knn.every_n_epochs:
        raise UserError(
            "checkpoint.best=true would be ignored, because no kNN accuracy is measured with "
            "knn.every_n_epochs=0."
        )
    if cfg.share_epochs and cfg.checkpoint.best:
        raise UserError(
            "share_epochs=true cannot be combined with checkpoint.best=true: the best checkpoint "
            "may be the other run's."
        )
    # solo-learn would clip gradients before they are unscaled or fully accumulated.
    unfinished = cfg.trainer.precision == "16-mixed" or cfg.trainer.accumulate_grad_batches > 1
    if unfinished and cfg.method.kwargs.get("clip_grad"):
        raise UserError(
            f"method.kwargs.clip_grad={cfg.method.kwargs.clip_grad} cannot be combined with "
            "16-mixed or accumulated gradients; use trainer.gradient_clip_val."
        )
    # With CUDA graphs, torch can sum gradients wrongly without an error (pytorch #96693).
    has_graphs = cfg.backbone.compile in ("reduce-overhead", "max-autotune", "cudagraphs")
    if has_graphs and cfg.trainer.accumulate_grad_batches > 1:
        raise UserError(
            f"backbone.compile={cfg.backbone.compile} cannot be combined with accumulated "
            "gradients; use max-autotune-no-cudagraphs or true."
        )
    if cfg.optimizer.fused and cfg.optimizer.name == "lars":
        raise UserError("optimizer.fused=true: lars has no fused version; leave it out.")
    _check_filter(cfg)
    loggers = sorted(packages.EXTRAS.keys() & (cfg.get("logger") or {}).keys())
    packages.check_installed(f"logger={','.join(loggers)}", *loggers)
    if cfg.p is not None:
        schedule = as_schedule(cfg.p, epochs=cfg.max_epochs)
        last = max(schedule.exponents)
        if schedule.kind == "steps" and last > cfg.max_epochs:
            raise UserError(
                f"p's step in epoch {last} would never take effect, because "
                f"max_epochs={cfg.max_epochs}: move it or leave it out."
            )


def _check_filter(cfg: DictConfig) -> None:
    """Refuse a filter that the method cannot take, and an exponent that would be ignored."""
    description, name = method(cfg.method.name), cfg.filter.name
    if name == "none" and not description.no_filter:
        raise UserError(
            f"method={description.name} needs a filter; for no predictor, pass filter=identity."
        )
    if name != "none" and description.no_filter:
        raise UserError(
            f"filter={name}: method={description.name} takes no filter, since "
            f"{description.no_filter}; leave filter out."
        )
    fixed = name == "identity" or cfg.filter.get("function")
    iso = cfg.method.get("loss") == "iso"
    if iso and (cfg.method.stop_gradient != "target" or not fixed):
        raise UserError(
            "method.loss=iso needs method.stop_gradient=target and a fixed filter: its gradient "
            "reaches neither a learned predictor nor the target."
        )
    if cfg.filter.get("momentum") and not cfg.filter.get("function"):
        raise UserError(f"filter.momentum would be ignored: filter={name} has no spectrum.")
    if cfg.p is not None and not cfg.filter.get("function"):
        raise UserError(f"p={cfg.p} would be ignored: filter={name} has no exponent; leave it out.")
