"""Refuses, in one sentence, values that no run could use."""

import torch
from omegaconf import DictConfig, OmegaConf

from rdm_solo.filters.schedules import as_schedule
from rdm_solo.messages import check_choice, check_number, check_switch, check_whole, suggest
from rdm_solo.methods.optimizers import OPTIMIZERS
from rdm_solo.train.warm_ups import WARM_UPS

# Half- and double-precision weights are refused: batch norms and spectra want float32 ones.
PRECISIONS = ("32-true", "16-mixed", "bf16-mixed")

# Whole numbers, and the least of each.
WHOLE = {
    "batch_size": 2,
    "max_epochs": 1,
    "knn.k": 1,
    "diagnostics.max_rows": 1,
    "diagnostics.max_dim": 1,
    "diagnostics.sample": 1,
    "diagnostics.every_n_epochs": 0,
    "knn.every_n_epochs": 0,
    "pictures.every_n_epochs": 0,
    "trainer.accumulate_grad_batches": 1,
    "trainer.num_nodes": 1,
}
# Numbers, and the least of each.
NUMBERS = {
    "optimizer.lr": 0,
    "optimizer.classifier_lr": 0,
    "optimizer.weight_decay": 0,
    "optimizer.momentum": 0,
    "optimizer.trust_coeff": 0,
    "scheduler.warmup_epochs": 0,
    "scheduler.warmup_start_lr": 0,
    "scheduler.min_lr": 0,
    "knn.temperature": 1e-6,
}
SWITCHES = (
    "backbone.channels_last",
    "optimizer.exclude_bias_n_norm",
    "optimizer.trust_clip",
    "trainer.enable_progress_bar",
)
# Arguments of Lightning's Trainer that are not for trainer=, and what gives them.
SET_ELSEWHERE = {
    "max_epochs": "max_epochs=...",
    "callbacks": "callbacks=...",
    "logger": "logger=...",
}


def check(cfg: DictConfig) -> None:
    """Refuse, in one sentence, what no run could use."""
    for name, least in WHOLE.items():
        check_whole(name, OmegaConf.select(cfg, name), least)
    check_whole("seed", cfg.seed, 0, 2**32 - 1)
    if cfg.get("threads") is not None:  # which older configs lack
        check_whole("threads", cfg.threads, 1, alternative="null to let the run decide")
    for name, smallest in NUMBERS.items():
        check_number(name, OmegaConf.select(cfg, name), smallest)
    for name in SWITCHES:
        check_switch(name, OmegaConf.select(cfg, name))
    for name in WARM_UPS:
        epochs = check_number(name, OmegaConf.select(cfg, name) or 0, 0)
        if epochs > cfg.max_epochs:
            raise ValueError(
                f"{name}={epochs:g} is longer than max_epochs={cfg.max_epochs}; shorten it."
            )
    for name in ("base_tau", "final_tau") if "momentum" in cfg.method else ():
        check_number(f"method.momentum.{name}", cfg.method.momentum[name], 0, 1)
    check_choice("optimizer.name", cfg.optimizer.name, OPTIMIZERS)
    check_choice("trainer.precision", cfg.trainer.precision, PRECISIONS)
    _check_backbone(cfg.backbone)
    _check_watch(cfg)
    _check_clipping(cfg)
    _check_trainer(cfg.trainer)
    if cfg.p is not None:
        p = OmegaConf.to_container(cfg.p) if OmegaConf.is_config(cfg.p) else cfg.p
        as_schedule(p, epochs=cfg.max_epochs)


def _check_watch(cfg: DictConfig) -> None:
    watch, off = cfg.watch, "null to switch it off"
    for name in ("variance", "erank"):
        if watch[name] is not None:
            check_number(f"watch.{name}", watch[name], 0, 1, alternative=off)
    if watch.gap_epochs is not None:
        check_whole("watch.gap_epochs", watch.gap_epochs, 0, alternative=off)
    if check_switch("watch.stop", watch.stop) and not cfg.diagnostics.every_n_epochs:
        raise ValueError(
            "watch.stop=true would be ignored: diagnostics.every_n_epochs=0 measures nothing that "
            "could be watched; leave one of them out."
        )


def _check_clipping(cfg: DictConfig) -> None:
    """Of DINO: solo-learn would clip scaled or partial gradients without a word."""
    scaled = cfg.trainer.precision == "16-mixed" or cfg.trainer.accumulate_grad_batches > 1
    if scaled and cfg.method.kwargs.get("clip_grad"):
        raise ValueError(
            f"method.kwargs.clip_grad={cfg.method.kwargs.clip_grad} clips before float16's scale "
            "is taken off and before gradients are summed up; use trainer.gradient_clip_val, or "
            "leave 16-mixed and accumulation."
        )


def _check_backbone(backbone: DictConfig) -> None:
    if not isinstance(backbone.name, str):
        raise ValueError(f"backbone.name must be a name such as resnet18, got {backbone.name!r}.")
    check_choice("backbone.stem", backbone.stem, ("small", "imagenet"))
    if isinstance(backbone.compile, str):
        from torch._dynamo import list_backends

        known = list_backends(exclude_tags=("experimental",))
        if backbone.compile not in known:
            raise ValueError(
                f"backbone.compile must be true, false, or one of {', '.join(known)}, "
                f"got {backbone.compile!r}{suggest(backbone.compile, known) or '.'}"
            )


def _check_trainer(trainer: DictConfig) -> None:
    check_switch("trainer.enable_progress_bar", trainer.enable_progress_bar)
    for name, instead in SET_ELSEWHERE.items():
        if name in trainer:
            raise ValueError(f"trainer.{name} is set by the run itself; use {instead}.")
    accelerator, devices = trainer.accelerator, trainer.devices
    if accelerator not in ("auto", "cpu", "gpu", "cuda"):
        raise ValueError(
            f"trainer.accelerator must be auto, cpu or gpu, got {accelerator!r}; spectra need "
            "float64, which other accelerators lack."
        )
    if devices is None or devices == 0:
        raise ValueError(f"trainer.devices must be a number, a list or 'auto', got {devices}.")
    if accelerator in ("gpu", "cuda"):
        found = torch.cuda.device_count()
        if not found:
            raise ValueError(
                f"trainer.accelerator={accelerator}, but this machine shows no GPU to torch "
                f"{torch.__version__}; use trainer=cpu or trainer=auto."
            )
        if isinstance(devices, int) and devices > found:
            raise ValueError(
                f"trainer.devices={devices}, but this machine has {found}; ask for fewer."
            )
