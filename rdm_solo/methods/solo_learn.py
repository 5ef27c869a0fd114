"""The installed solo-learn, with the interface of its current version.

The current version (GitHub, 1.0.6) builds methods from one OmegaConf config. The only release on
the Python package index (1.0.2) takes keyword arguments and was written for Lightning 1.4. No
other module imports solo-learn.
"""

import functools
import importlib
import sys
import types
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import nn

from rdm_solo.ground.distributed import sum_over_processes, world_size
from rdm_solo.ground.errors import UserError
from rdm_solo.ground.lightning import CURRENT, pl
from rdm_solo.ground.packages import TRAINING, check_installed
from rdm_solo.ground.values import check_choice
from rdm_solo.methods import backbones, optimizers
from rdm_solo.methods.descriptions import METHODS

# Our names for solo-learn's scalars that are not train/NAME. A loss's name depends on the method.
SCALARS = {
    "train_neg_cos_sim": "train/loss",
    "train_class_loss": "train/classifier_loss",
    "train_z_std": "train/target_std",
    "train_nn_acc": "train/neighbour_acc",
    "val_loss": "val/classifier_loss",
    "val_acc1": "val/acc1",
    "val_acc5": "val/acc5",
    "tau": "train/tau",
}


# Modules that solo-learn and timm import only if they are installed, for plots and a script that no
# run uses. With both, a start takes 1.4 s of CPU time more (of 9.5).
OPTIONAL = ("solo.utils.auto_umap", "wandb")


def _import_solo() -> types.ModuleType:
    check_installed("training", *TRAINING)
    # solo-learn 1.0.2 imports a scheduler from lightning-bolts, which cannot be installed with
    # Lightning 2. Our methods do not use it.
    for name in ("pl_bolts", "pl_bolts.optimizers", "pl_bolts.optimizers.lr_scheduler"):
        stub: Any = types.ModuleType(name)
        stub.LinearWarmupCosineAnnealingLR = None
        sys.modules[name] = stub
    with warnings.catch_warnings():
        # solo-learn 1.0.2 and 1.0.6 use names that torch 2.4 (custom_fwd) and timm 0.9 have moved.
        warnings.simplefilter("ignore", FutureWarning)
        # solo-learn 1.0.2 registers its swin_* names in timm's own registry.
        warnings.filterwarnings("ignore", message="Overwriting .* in registry")
        hidden = [name for name in OPTIONAL if name not in sys.modules]
        for name in hidden:
            sys.modules[name] = None  # type: ignore[assignment]  # imported as if it were missing
        try:
            return importlib.import_module("solo.methods")
        finally:
            for name in hidden:
                del sys.modules[name]


TABLE = _import_solo().METHODS  # solo-learn's classes by name; its scripts use this dict as well
_base = sys.modules["solo.methods.base"]
timm = sys.modules["timm"]

GENERATION = "current" if CURRENT else "legacy"

# Methods that accept small crops.
MULTI_CROP = [name for name, description in METHODS.items() if GENERATION in description.multi_crop]

_BACKBONE_TABLE = "_BACKBONES" if CURRENT else "_SUPPORTED_ENCODERS"
SOLO_BACKBONES = tuple(getattr(_base.BaseMethod, _BACKBONE_TABLE))
BACKBONES = (*backbones.EXTRA, *SOLO_BACKBONES)
TIMM = "timm/"  # prefix of timm's models


def version() -> str:
    """Return the version of the installed solo-learn, as text for messages."""
    return "1.0.6 or later (current)" if CURRENT else "1.0.2 (legacy)"


class _Adapter(pl.LightningModule):
    """A method of solo-learn's with our optimiser, which logs scalars under our names."""

    scalars = SCALARS
    labelled = True
    validated = 0  # images of this process in this epoch's validation
    step_loss: torch.Tensor | None = None  # the loss of the last training step

    def __init__(self, run_config: DictConfig, /, **arguments: Any) -> None:
        self.run_config = run_config
        super().__init__(**arguments)

    def configure_optimizers(self) -> Any:
        steps = int(self.trainer.estimated_stepping_batches)
        return optimizers.configure(self.learnable_params, self.run_config, steps)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Drop buffers that modules create only in their first call, as All4One's do."""
        state = checkpoint["state_dict"]
        for name in state.keys() - self.state_dict().keys():
            del state[name]

    def log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        """Log a scalar under our name, once per epoch.

        Logging takes a tenth of a small network's step, so scalars of single steps that only a
        logger shows are skipped in runs without one.
        """
        our_name = self.scalars.get(name, name.replace("train_", "train/", 1))
        of_labels = "acc" in our_name or "class" in our_name  # of an online classifier
        if of_labels and not self.labelled:
            return
        of_steps = our_name.startswith("train/") and our_name not in (name, "train/loss")
        if of_steps and not self.run_config.get("logger"):
            return
        if kwargs.get("on_epoch"):  # Lightning would log it twice and synchronise in every step
            kwargs["on_step"] = False
        if our_name == "train/loss":
            kwargs["prog_bar"] = True
        if isinstance(value, (int, float)):  # Lightning's copy would synchronise with the device
            value = torch.full((), float(value), device=self.device)
        if our_name == "train/loss":
            self.step_loss = value.detach()
        if world_size() > 1 and name.startswith(("val_", "momentum_val_")):
            # Weight by the number of images, so that the processes' mean is that of all images.
            # Lightning's own batch_size does not help: it rounds the mean number of images down.
            images = torch.tensor(self.validated, dtype=torch.float64, device=self.device)
            weight = self.validated * world_size() / sum_over_processes(images)
            value = value * weight
        super().log(our_name, value, *args, **kwargs)

    def _base_shared_step(self, X: torch.Tensor, targets: torch.Tensor) -> Any:
        """Leave out the accuracies of a training step where `log` skips them.

        In 1.0.2 they take 36 operators a step.
        """
        if not self.training or self.run_config.get("logger"):
            return super()._base_shared_step(X, targets)
        out = self(X) if CURRENT else self.base_forward(X)
        loss = nn.functional.cross_entropy(out["logits"], targets, ignore_index=-1)
        return {**out, "loss": loss, "acc1": 0.0, "acc5": 0.0}

    def on_validation_epoch_start(self) -> None:
        super().on_validation_epoch_start()
        self.validated = 0

    def validation_step(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        self.validated += len(batch[-1])
        return super().validation_step(batch, *args, **kwargs)


class _Current(_Adapter):
    """Builds a model of the current version from our config."""

    def __init__(self, cfg: DictConfig) -> None:
        name = cfg.backbone.name
        constructor = _constructor(name)
        if constructor:
            table = _base.BaseMethod._BACKBONES
            table[name] = lambda method, **kwargs: constructor(**kwargs)
        super().__init__(cfg, cfg=current_config(cfg))


class _Legacy(_Adapter):
    """Builds a model of 1.0.2 from our config, with the current version's names and hooks."""

    NAMES = {"encoder": "backbone", "momentum_encoder": "momentum_backbone"}

    # Lightning 2 refuses modules that define this; on_validation_epoch_end calls the original.
    validation_epoch_end = None

    def __init__(self, cfg: DictConfig) -> None:
        self._validation_outputs: list[Any] = []
        super().__init__(cfg, **legacy_arguments(cfg))

    def __setattr__(self, name: str, value: object) -> None:
        if name == "base_model":  # 1.0.2 looks it up in a local dict of its own backbones
            value = _constructor(self.run_config.backbone.name) or value
        super().__setattr__(self.NAMES.get(name, name), value)

    def __getattr__(self, name: str) -> Any:
        return super().__getattr__(self.NAMES.get(name, name))

    def validation_step(self, *args: Any) -> None:
        outputs = super().validation_step(*args)
        self._validation_outputs.append(outputs)

    def on_validation_epoch_end(self) -> None:
        super().validation_epoch_end(self._validation_outputs)
        self._validation_outputs = []


class _Momentum(pl.LightningModule):
    """A momentum encoder that resumes bit for bit."""

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__(cfg)
        self.momentum_updater.update = self._update_in_place

    @torch.no_grad()
    def _update_in_place(self, online: nn.Module, momentum: nn.Module) -> None:
        """Compute solo-learn's average in place, ``tau * average + (1 - tau) * weight``.

        solo-learn 1.0.2 and 1.0.6 create new tensors. For 1x1 or single-channel convolutions, their
        strides differ from those of loaded weights, and oneDNN then sums in another order.

        Three operators cover all weights, where a loop would launch four kernels for each weight.
        ``lerp`` and ``alpha`` would round differently.
        """
        tau = self.momentum_updater.cur_tau
        weights: list[torch.Tensor] = list(online.parameters())
        averages: list[torch.Tensor] = list(momentum.parameters())
        steps = torch._foreach_mul(weights, 1 - tau)
        torch._foreach_mul_(averages, tau)
        torch._foreach_add_(averages, steps)

    def on_train_start(self) -> None:
        super().on_train_start()
        self.last_step = self.trainer.global_step
        self._update_tau()  # solo-learn's checkpoints do not contain tau

    def _update_tau(self) -> None:
        self.momentum_updater.update_tau(
            cur_step=self.trainer.global_step, max_steps=self.trainer.estimated_stepping_batches
        )


class _LegacyMomentum(_Momentum):
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        stepped = self.trainer.global_step > self.last_step
        super().on_train_batch_end(outputs, batch, batch_idx, 0)
        if stepped:  # 1.0.2 counts the loader's batches, the current version the steps
            self._update_tau()

    def configure_gradient_clipping(self, *args: Any, **kwargs: Any) -> None:
        # The DINO of 1.0.2 overrides clip_gradients, Lightning's method, with clipping of its own.
        pl.LightningModule.clip_gradients(self, *args, **kwargs)


@functools.cache
def adapt(name: str) -> Any:
    """Return solo-learn's class of a method, adapted to take our config."""
    base = TABLE[name]
    bases = [_Current if CURRENT else _Legacy, base]
    if issubclass(base, _base.BaseMomentumMethod):
        bases.insert(0, _Momentum if CURRENT else _LegacyMomentum)
    adapted: Any = type(base.__name__, tuple(bases), {})
    if name in METHODS:
        loss = METHODS[name].loss or f"{name}_loss"
        adapted.scalars = {**SCALARS, loss: "train/loss", f"train_{loss}": "train/loss"}
    return adapted


def register(methods: Mapping[str, Any]) -> None:
    """Add methods to the table of solo-learn's own entry points."""
    if not CURRENT:
        raise UserError(
            f"solo-learn {version()} has no option for a filter; register_methods() needs its "
            "current main: put a checkout on PYTHONPATH, or use rdm-solo train."
        )
    TABLE.update(methods)


def check_backbone(name: str) -> None:
    """Raise UserError for an unknown backbone, and suggest the nearest one."""
    if not name.startswith(TIMM):
        check_choice("backbone.name (or timm/NAME)", name, BACKBONES)
    elif not timm.is_model(name.removeprefix(TIMM)):
        raise UserError(f"backbone.name={name!r}: timm has no such model.")


def _constructor(name: str) -> Callable[..., Any] | None:
    """Return the constructor of a backbone of ours or timm's; None for solo-learn's own."""
    if name.startswith(TIMM):
        return functools.partial(timm.create_model, name.removeprefix(TIMM), num_classes=0)
    return backbones.EXTRA.get(name)


def backbone(name: str, stem: str, kwargs: Mapping[str, Any], image_size: int) -> nn.Module:
    """Return a backbone as solo-learn's methods build it."""
    check_backbone(name)
    config = {
        "method": {"name": "base", "kwargs": {}},
        "backbone": {"name": name, "stem": stem, "kwargs": dict(kwargs)},
        "dataset": {
            "image_size": image_size,
            "num_classes": 1,
            "num_large_crops": 2,
            "num_small_crops": 0,
        },
        "optimizer": {"lr": 0, "weight_decay": 0, "classifier_lr": 0},
        "max_epochs": 1,
        "batch_size": 1,
    }
    backbone: nn.Module = adapt("base")(OmegaConf.create(config)).backbone
    return backbone


def current_config(cfg: DictConfig) -> DictConfig:
    """Convert our config to the current version's.

    Optimiser, schedule, kNN and learning-rate scaling are ours, so solo-learn's are disabled.
    """
    backbone = cfg.backbone
    backbone_arguments = backbones.arguments(
        backbone.name, backbone.stem, backbone.kwargs, cfg.dataset.image_size
    )
    return OmegaConf.create(
        {
            "method": cfg.method.name,
            "backbone": {"name": backbone.name, "kwargs": backbone_arguments},
            "data": {
                # solo-learn chooses the stem of a ResNet by the data set's name.
                "dataset": "cifar10" if backbone.stem == "small" else "custom",
                "num_classes": cfg.dataset.num_classes,
                "num_large_crops": cfg.dataset.num_large_crops,
                "num_small_crops": cfg.dataset.num_small_crops,
            },
            "max_epochs": cfg.max_epochs,
            "optimizer": {
                "name": "sgd",
                "batch_size": cfg.batch_size,
                "lr": cfg.optimizer.lr,
                "weight_decay": cfg.optimizer.weight_decay,
                "classifier_lr": cfg.optimizer.classifier_lr,
            },
            "scheduler": {"name": "none", "interval": "epoch"},
            "momentum": dict(cfg.method.get("momentum") or {}),
            "performance": {"disable_channel_last": True},
            "method_kwargs": dict(cfg.method.kwargs),
        }
    )


def legacy_arguments(cfg: DictConfig) -> dict[str, Any]:
    """Convert our config to 1.0.2's keyword arguments, with the same parts disabled."""
    current: Any = OmegaConf.to_container(current_config(cfg))
    momentum = current["momentum"]
    encoder = cfg.backbone.name
    encoder_kwargs = current["backbone"]["kwargs"]
    if encoder in SOLO_BACKBONES:
        encoder_kwargs["cifar"] = cfg.backbone.stem == "small"
    else:
        encoder = "vit_tiny"  # any name that 1.0.2 does not treat as a ResNet
    return {
        **current["data"],
        **current["optimizer"],
        **current["method_kwargs"],
        "encoder": encoder,
        "backbone_args": encoder_kwargs,
        "max_epochs": cfg.max_epochs,
        "optimizer": "sgd",
        "lars": False,
        "exclude_bias_n_norm": False,
        "accumulate_grad_batches": 1,
        "extra_optimizer_args": {},
        "scheduler": "none",
        "min_lr": 0.0,
        "warmup_start_lr": 0.0,
        "warmup_epochs": 0,
        # Methods without a momentum encoder ignore these.
        "base_tau_momentum": momentum.get("base_tau"),
        "final_tau_momentum": momentum.get("final_tau"),
        "momentum_classifier": momentum.get("classifier"),
    }
