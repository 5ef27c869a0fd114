"""From the composed config to what a run uses: checks, derived values, warnings. One place each."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from rdm_solo.data import Dataset
from rdm_solo.optim import OPTIMIZERS
from rdm_solo.runs import filter_name
from rdm_solo.schedules import as_schedule, suggest

__all__ = ["check", "check_resume", "derive", "title", "warnings", "world_size"]

# Half- and double-precision weights are refused: batch norms and spectra want float32 ones.
PRECISIONS = ("32-true", "16-mixed", "bf16-mixed")

# What a resumed run must share with the one that it goes on from; max_epochs may grow.
SHARED = ("method", "filter", "p", "seed", "batch_size", "backbone", "optimizer", "scheduler")
SHARED += ("dataset",)
# What may change on another machine.
LOCAL = ("root", "download", "workers", "skip_broken", "compile", "channels_last")


def check(cfg: DictConfig) -> None:
    """Refuse, in one sentence, what no run could use."""
    for name, least in (("batch_size", 2), ("max_epochs", 1), ("seed", 0)):
        value = cfg[name]
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}.")
    for name in ("knn.k", "diagnostics.max_rows", "diagnostics.max_dim", "diagnostics.sample"):
        _check_number(cfg, name, 1, int)
    for name in ("diagnostics.every_n_epochs", "knn.every_n_epochs", "pictures.every_n_epochs"):
        _check_number(cfg, name, 0, int)
    for name in ("lr", "classifier_lr", "weight_decay", "momentum"):
        _check_number(cfg, f"optimizer.{name}", 0, float)
    _check_watch(cfg.watch, bool(cfg.diagnostics.every_n_epochs))
    _check_method(cfg)
    _check_compile(cfg.backbone.compile)
    _check_number(cfg, "scheduler.warmup_epochs", 0, float)
    _check_number(cfg, "knn.temperature", 1e-6, float)
    if cfg.backbone.stem not in ("small", "imagenet"):
        raise ValueError(f"backbone.stem must be 'small' or 'imagenet', got {cfg.backbone.stem!r}.")
    if cfg.scheduler.warmup_epochs > cfg.max_epochs:
        raise ValueError(
            f"scheduler.warmup_epochs={cfg.scheduler.warmup_epochs} is longer than "
            f"max_epochs={cfg.max_epochs}; shorten it."
        )
    if cfg.optimizer.name not in OPTIMIZERS:
        raise ValueError(
            f"optimizer.name must be one of {', '.join(OPTIMIZERS)}, "
            f"got {cfg.optimizer.name!r}{suggest(cfg.optimizer.name, OPTIMIZERS)}."
        )
    if cfg.p is not None:
        p = OmegaConf.to_container(cfg.p) if OmegaConf.is_config(cfg.p) else cfg.p
        as_schedule(p, epochs=cfg.max_epochs)
    _check_device(cfg.trainer)


def _check_number(cfg: DictConfig, name: str, least: float, kind: type) -> None:
    value = OmegaConf.select(cfg, name)
    fits = isinstance(value, (int, kind)) and not isinstance(value, bool) and value >= least
    if not fits:
        what = "whole number" if kind is int else "number"
        raise ValueError(f"{name} must be a {what} of at least {least:g}, got {value!r}.")


def _check_watch(watch: DictConfig, measured: bool) -> None:
    for name, kind in (("variance", float), ("erank", float), ("gap_epochs", int)):
        value = watch[name]
        most = 1 if kind is float else math.inf
        fits = isinstance(value, (int, kind)) and not isinstance(value, bool)
        if value is not None and not (fits and 0 <= value <= most):
            what = "a whole number of epochs" if kind is int else "a number from 0 to 1"
            raise ValueError(
                f"watch.{name} must be {what}, or null to switch it off, got {value!r}."
            )
    if not isinstance(watch.stop, bool):
        raise ValueError(f"watch.stop must be true or false, got {watch.stop!r}.")
    if watch.stop and not measured:
        raise ValueError(
            "watch.stop=true would be ignored: diagnostics.every_n_epochs=0 measures nothing that "
            "could be watched; leave one of them out."
        )


def _check_method(cfg: DictConfig) -> None:
    """Options of a method that solo-learn would refuse with an assertion, or not at all."""
    method, kwargs = cfg.method, cfg.method.kwargs
    if "momentum" in method:
        for name in ("base_tau", "final_tau"):
            value = method.momentum[name]
            if not isinstance(value, (int, float)) or not 0 <= value <= 1:
                raise ValueError(f"method.momentum.{name} must be from 0 to 1, got {value!r}.")
    warm = kwargs.get("warmup_teacher_temperature_epochs", 0)
    if warm > cfg.max_epochs:
        raise ValueError(
            f"method.kwargs.warmup_teacher_temperature_epochs={warm} is longer than "
            f"max_epochs={cfg.max_epochs}; shorten it."
        )
    scaled = cfg.trainer.precision == "16-mixed" or cfg.trainer.accumulate_grad_batches > 1
    if kwargs.get("clip_grad") and scaled:
        raise ValueError(
            f"method.kwargs.clip_grad={kwargs.clip_grad} clips before float16's scale is taken off "
            "and before gradients are summed up; use trainer.gradient_clip_val, or leave "
            "16-mixed and accumulation."
        )


def _check_compile(backend: Any) -> None:
    if isinstance(backend, str):
        from torch._dynamo import list_backends

        known = list_backends(exclude_tags=("experimental",))
        if backend not in known:
            raise ValueError(
                f"backbone.compile must be true, false, or one of {', '.join(known)}, "
                f"got {backend!r}{suggest(backend, known) or '.'}"
            )


def _check_device(trainer: DictConfig) -> None:
    accelerator, devices = trainer.accelerator, trainer.devices
    if trainer.precision not in PRECISIONS:
        raise ValueError(
            f"trainer.precision must be one of {', '.join(PRECISIONS)}, got {trainer.precision!r}."
        )
    for name, instead in (
        ("max_epochs", "max_epochs=..."),
        ("callbacks", "the Python API"),
        ("logger", "logger=..."),
    ):
        if name in trainer:
            raise ValueError(f"trainer.{name} is set by the run itself; use {instead}.")
    if accelerator not in ("auto", "cpu", "gpu", "cuda"):
        raise ValueError(
            f"trainer.accelerator must be auto, cpu or gpu, got {accelerator!r}; spectra need "
            "float64, which other accelerators lack."
        )
    if devices is None:
        raise ValueError("trainer.devices must be a number, a list or 'auto', got null.")
    if accelerator in ("gpu", "cuda"):
        found = torch.cuda.device_count()
        if not found:
            raise ValueError(
                f"trainer.accelerator={accelerator}, but this machine shows no GPU to torch "
                f"{torch.__version__}; use trainer=cpu or trainer=auto."
            )
        if isinstance(devices, int) and devices > max(found, 1):
            raise ValueError(
                f"trainer.devices={devices}, but this machine has {found}; ask for fewer."
            )
    if isinstance(devices, int) and devices == 0:
        raise ValueError("trainer.devices must be at least 1 or 'auto', got 0.")


def check_resume(cfg: DictConfig, folder: Path, new: Path) -> Path:
    """The checkpoint to go on from; refuses one of another experiment or of a finished run."""
    if folder.resolve() == new.resolve():
        raise ValueError(
            f"resume={folder} is this run's own folder, where its files would be written over; "
            "give another hydra.run.dir."
        )
    checkpoint = folder / "checkpoints" / "last.ckpt"
    if not checkpoint.is_file():
        raise ValueError(f"resume={folder} holds no checkpoints/last.ckpt; give a run's folder.")
    config = folder / ".hydra" / "config.yaml"
    if config.is_file():
        before: Any = OmegaConf.load(config)
        for name in SHARED:
            if _shared(before, name) != _shared(cfg, name):
                raise ValueError(
                    f"resume={folder} was run with another {name!r} than this command; repeat the "
                    "run's own options beside resume=..."
                )
    done = torch.load(checkpoint, map_location="cpu", weights_only=True)["epoch"] + 1
    if done >= cfg.max_epochs:
        raise ValueError(
            f"resume={folder} has finished {done} epochs and max_epochs={cfg.max_epochs}; raise "
            "max_epochs to go on."
        )
    return checkpoint


def _shared(cfg: DictConfig, name: str) -> Any:
    """That part of a config, without what may differ between machines."""
    part = OmegaConf.to_container(cfg, resolve=True)[name]  # type: ignore[call-overload,index]

    def strip(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        return {key: strip(value) for key, value in node.items() if key not in LOCAL}

    return strip(part)


def title(cfg: DictConfig) -> str:
    """A run in a few words: method, filter, exponent, data."""
    words = [cfg.method.name]
    if cfg.filter.name != "none":
        words.append(filter_name(cfg))
    if cfg.p is not None:
        words.append("p scheduled" if OmegaConf.is_config(cfg.p) else f"p = {cfg.p:g}")
    return ", ".join([*words, cfg.dataset.name])


def world_size(trainer: DictConfig) -> int:
    """Processes of the run, as Lightning will count them."""
    devices = trainer.devices
    if devices in ("auto", -1, "-1"):
        on_gpu = trainer.accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available()
        devices = torch.cuda.device_count() if on_gpu else 1
    elif isinstance(devices, str):
        devices = len([d for d in devices.split(",") if d]) if "," in devices else int(devices)
    elif not isinstance(devices, int):
        devices = len(devices)
    return int(devices) * int(trainer.num_nodes)


def derive(cfg: DictConfig, dataset: Dataset, num_large_crops: int, num_small_crops: int) -> Any:
    """The config with class counts and scaled learning rates, and those values on their own.

    The linear scaling rule is applied here and nowhere else:
    ``lr * batch_size * processes * accumulation / 256``.
    """
    from rdm_solo.host import MULTI_CROP

    if num_large_crops != 2 or (num_small_crops and cfg.method.name not in MULTI_CROP):
        raise ValueError(
            f"method={cfg.method.name} takes two large crops and no small ones, got "
            f"{num_large_crops} and {num_small_crops} from dataset.views; multi-crop goes with "
            f"method={' or method='.join(MULTI_CROP)}, two large crops beside the small ones."
        )
    processes = world_size(cfg.trainer)
    accumulation = int(cfg.trainer.get("accumulate_grad_batches") or 1)
    filter_batch = cfg.batch_size * processes
    if filter_batch > len(dataset.train):
        raise ValueError(
            f"batch_size={cfg.batch_size} on {processes} process(es) is more than the "
            f"{len(dataset.train)} training images of dataset={dataset.name}; lower it."
        )
    global_batch = filter_batch * accumulation
    scale = global_batch / 256
    derived = {
        "processes": processes,
        "filter_batch": filter_batch,
        "global_batch": global_batch,
        "steps_per_epoch": len(dataset.train) // filter_batch,
        "base_lr": float(cfg.optimizer.lr),
        "lr": cfg.optimizer.lr * scale,
        "base_classifier_lr": float(cfg.optimizer.classifier_lr),
        "classifier_lr": cfg.optimizer.classifier_lr * scale,
    }
    cfg = cfg.copy()
    OmegaConf.set_struct(cfg, False)
    cfg.optimizer.lr, cfg.optimizer.classifier_lr = derived["lr"], derived["classifier_lr"]
    cfg.dataset.num_classes = dataset.num_classes
    cfg.dataset.num_large_crops = num_large_crops
    cfg.dataset.num_small_crops = num_small_crops
    OmegaConf.set_struct(cfg, True)
    return cfg, derived


def warnings(cfg: DictConfig, derived: dict[str, Any], smallest_crop: float) -> list[str]:
    """One sentence for each setting that is known to go wrong. Figures: 8x8 digits, docs of the
    embedded run; they are a warning, not a law."""
    found = []
    name, k = filter_name(cfg), cfg.method.kwargs.proj_output_dim
    if cfg.filter.get("function") is not None and derived["filter_batch"] < 2 * k:
        found.append(
            f"a batch of {derived['filter_batch']} rows is less than twice the {k} output "
            "dimensions: some directions are empty and the filter curve need not be monotone."
        )
    if name in ("online_log", "online_log1p", "online_log1p_sq") and smallest_crop < 0.5:
        found.append(
            f"filter={name} is weak under strong augmentation: with crops from "
            f"{smallest_crop:g} of the area the effective rank can fall to 1 (it did on digits, "
            "where target_pow with p=-0.5 survived)."
        )
    if name == "online_log":
        found.append(
            "log(sigma) is negative below sigma = 1 and flips such directions; sigma grows with "
            "the root of the global batch, so the filter changes with the batch size."
        )
    if name == "linear":
        if cfg.scheduler.warmup_epochs < 0.1 * cfg.max_epochs:
            found.append(
                f"a linear predictor with {cfg.scheduler.warmup_epochs} warm-up epochs of "
                f"{cfg.max_epochs} may collapse: warm up for at least a tenth of them."
            )
        if derived["base_lr"] > 0.5 and cfg.optimizer.name == "sgd":
            found.append(
                f"a linear predictor at optimizer.lr={derived['base_lr']:g} may collapse: 0.5 or "
                "less is safer."
            )
    return found
