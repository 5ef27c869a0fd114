"""solo-learn, whichever generation is installed, with the interface of the current one.

The current generation (GitHub, 1.0.6) builds methods from one OmegaConf config. The only release on
the Python package index (1.0.2) takes keyword arguments and was written for Lightning 1.4. This is
the one module that knows either; when the index catches up, the classes named Legacy can go.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import types
import warnings
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from rdm_solo.lightning import CURRENT, pl
from rdm_solo.messages import suggest
from rdm_solo.methods.backbones import SmallResNet
from rdm_solo.methods.descriptions import METHODS

INSTALL = """solo-learn is not installed. Its release on the package index pins torch 1.9, so \
install it without its dependencies:
    pip install --no-deps solo-learn==1.0.2
or put a checkout of its current main branch on the path:
    git clone https://github.com/vturrisi/solo-learn && export PYTHONPATH=$PWD/solo-learn"""

# Backbones that solo-learn lacks; registered with both generations.
OWN_BACKBONES: dict[str, Callable[..., Any]] = {"small_resnet": SmallResNet}
OWN_ARGUMENTS = ("in_channels", "width")
TIMM = "timm/"

# What solo-learn calls its scalars, and what every logger and file of ours calls them.
SCALARS = {
    **{described.loss_name: "train/loss" for described in METHODS.values()},
    "train_class_loss": "train/classifier_loss",
    "train_acc1": "train/acc1",
    "train_acc5": "train/acc5",
    "train_z_std": "train/target_std",
    "val_loss": "val/classifier_loss",
    "val_acc1": "val/acc1",
    "val_acc5": "val/acc5",
    "tau": "train/tau",
}


# Of the online classifier: meaningless without labels.
OF_LABELS = {name for name in SCALARS.values() if "acc" in name or "classifier" in name}


class SoloLearnMissing(ImportError):
    """solo-learn cannot be imported; the message says how to get it."""


def _import_solo() -> types.ModuleType:
    if importlib.util.find_spec("solo") is None:
        raise SoloLearnMissing(INSTALL)
    if importlib.util.find_spec("pl_bolts") is None:
        _stub_pl_bolts()
    with warnings.catch_warnings():
        # solo-learn 1.0.2 and 1.0.6 with torch >= 2.4: whitening.py uses torch.cuda.amp.custom_fwd.
        warnings.filterwarnings("ignore", message=".*custom_fwd.*", category=FutureWarning)
        # The same with timm >= 0.9: helpers and registry have moved.
        warnings.filterwarnings("ignore", message="Importing from timm", category=FutureWarning)
        # solo-learn 1.0.2 registers its swin_* names in timm's own registry.
        warnings.filterwarnings(
            "ignore", message="Overwriting .* in registry", category=UserWarning
        )
        try:
            return importlib.import_module("solo.methods")
        except ImportError as error:
            raise SoloLearnMissing(
                f"solo-learn is installed but cannot be imported: {error}. Known-good versions of "
                "what it needs are in requirements.txt of this project."
            ) from error


def _stub_pl_bolts() -> None:
    """solo-learn 1.0.2 imports a scheduler from lightning-bolts, which cannot be installed beside
    today's Lightning. Our methods bring their own schedule, so a name is enough."""

    class LinearWarmupCosineAnnealingLR:
        def __init__(self, *args: object, **kwargs: object) -> None:
            raise NotImplementedError(
                "lightning-bolts is not installed; use the optimizer settings of rdm_solo."
            )

    for name in ("pl_bolts", "pl_bolts.optimizers", "pl_bolts.optimizers.lr_scheduler"):
        sys.modules.setdefault(name, types.ModuleType(name))
    scheduler = sys.modules["pl_bolts.optimizers.lr_scheduler"]
    scheduler.LinearWarmupCosineAnnealingLR = LinearWarmupCosineAnnealingLR  # type: ignore[attr-defined]


_methods = _import_solo()
_base = sys.modules["solo.methods.base"]

GENERATION = "current" if CURRENT else "legacy"


def version() -> str:
    """The installed solo-learn, as a person would name it.

    The index's wheel may lie beside a checkout that shadows it, so the generation decides.
    """
    if CURRENT:
        return "1.0.6 or later (current)"
    try:
        return f"{metadata.version('solo-learn')} (legacy)"
    except metadata.PackageNotFoundError:
        return "1.0.x (legacy)"


class _OurScalars(pl.LightningModule):  # type: ignore[misc,name-defined]
    """Logs solo-learn's scalars under our names, once an epoch."""

    labelled = True

    def log_dict(self, dictionary: Any, *args: Any, **kwargs: Any) -> None:
        for name, value in dictionary.items():
            self.log(name, value, *args, **kwargs)

    def log(self, name: str, *args: Any, **kwargs: Any) -> None:
        name = SCALARS.get(name, name)
        if name in OF_LABELS and not self.labelled:  # all labels are 0, which is easily learned
            return
        if kwargs.get("on_epoch"):  # or Lightning would name it twice, and wait for it every step
            kwargs["on_step"] = False
        if name == "train/loss":
            kwargs["prog_bar"] = True
        super().log(name, *args, **kwargs)


class _Current(_OurScalars):
    """Builds a class of the current generation from our config."""

    def __init__(self, cfg: DictConfig) -> None:
        _register_backbone(cfg.backbone.name)
        super().__init__(current_config(cfg))


class _Legacy(_OurScalars):
    """Builds a class of 1.0.2 from our config, with the current generation's names and hooks."""

    # Lightning 2 refuses modules that define it; on_validation_epoch_end below calls the original.
    validation_epoch_end = None

    def __init__(self, cfg: DictConfig) -> None:
        self._own_backbone = _own_backbone(cfg.backbone.name)
        self._validation_outputs: list[Any] = []
        super().__init__(**legacy_arguments(cfg))

    def __setattr__(self, name: str, value: object) -> None:
        current = {"encoder": "backbone", "momentum_encoder": "momentum_backbone"}
        super().__setattr__(current.get(name, name), value)

    @property
    def encoder(self) -> Any:
        return self.backbone

    @property
    def momentum_encoder(self) -> Any:
        return self.momentum_backbone

    @property
    def base_model(self) -> Any:
        """1.0.2 looks constructors up in a local dict, which knows no others than its own."""
        return self._base_model

    @base_model.setter
    def base_model(self, chosen: Any) -> None:
        self._base_model = self._own_backbone or chosen

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self._validation_outputs.append(super().validation_step(batch, batch_idx))

    def on_validation_epoch_end(self) -> None:
        super().validation_epoch_end(self._validation_outputs)
        self._validation_outputs = []


class _LegacyMomentum(_Legacy):
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        stepped = self.trainer.global_step > self.last_step
        super().on_train_batch_end(outputs, batch, batch_idx, 0)
        if stepped:  # 1.0.2 counts the loader's length; the current generation counts steps
            self.momentum_updater.update_tau(
                cur_step=self.trainer.global_step,
                max_steps=self.trainer.estimated_stepping_batches,
            )


class _LegacyClipping(_LegacyMomentum):
    def clip_gradients(self, clip: Any, *args: Any, **kwargs: Any) -> None:
        """1.0.2 gives its own clipping the name of Lightning's hook; what is handed in decides."""
        if isinstance(clip, torch.optim.Optimizer):
            pl.LightningModule.clip_gradients(self, clip, *args, **kwargs)
        else:
            super().clip_gradients(clip)  # type: ignore[misc]


def adapted(name: str) -> Any:
    """solo-learn's class of that method, built from our config on either generation."""
    base = original(name)
    adapter: type = _Current
    if not CURRENT:
        adapter = _LegacyMomentum if issubclass(base, _base.BaseMomentumMethod) else _Legacy
        if "clip_gradients" in vars(base):
            adapter = _LegacyClipping
    doc = f"solo-learn's {base.__name__}, built from our config."
    return type(base.__name__, (adapter, base), {"__doc__": doc, "__module__": __name__})


def as_it_is(name: str, cfg: DictConfig) -> Any:
    """solo-learn's own class of that method with the sizes of our config, and nothing of ours."""
    solo = original(name)
    return solo(current_config(cfg)) if CURRENT else solo(**legacy_arguments(cfg))


def original(name: str) -> Any:
    """solo-learn's own class of a method, as it is."""
    return _methods.METHODS[name]


def complete(model: Any) -> Any:
    """The model with what solo-learn adds when training starts: SwAV's Sinkhorn (``model.sk``)."""
    if hasattr(model, "sk_iters"):
        sinkhorn = sys.modules["solo.methods.swav"].SinkhornKnopp
        model.sk = sinkhorn(model.sk_iters, model.sk_epsilon, 1)
    return model


def register(classes: dict[str, Any]) -> None:
    """Add methods to solo-learn's own table, from which its entry points choose by name."""
    if not CURRENT:
        raise RuntimeError(
            f"solo-learn {version()} builds methods from command-line arguments, which know no "
            "filters; register_methods() needs its current main: put a checkout on PYTHONPATH, or "
            "use python -m rdm_solo.train, which runs on both."
        )
    _methods.METHODS.update(classes)


# Methods that take small crops beside the two large ones.
MULTI_CROP = [name for name, described in METHODS.items() if GENERATION in described.multi_crop]


def backbones() -> list[str]:
    """Backbones by name: ours and the installed solo-learn's. ``timm/NAME`` is any of timm's."""
    known = _base.BaseMethod._BACKBONES if CURRENT else _base.BaseMethod._SUPPORTED_ENCODERS
    return [*OWN_BACKBONES, *(name for name in known if name not in OWN_BACKBONES)]


def check_backbone(name: str) -> None:
    """Refuse a name that nothing builds, with the nearest one that something does."""
    if name.startswith(TIMM):
        import timm

        if not timm.is_model(name.removeprefix(TIMM)):
            hint = suggest(name.removeprefix(TIMM), timm.list_models()) or "."
            raise ValueError(f"backbone.name={name!r}: timm has no such model{hint}")
    elif name not in backbones():
        import timm

        hint = suggest(name, backbones()) or "."
        if timm.is_model(name):
            hint = f"; timm has one: backbone.name=timm/{name}."
        raise ValueError(
            f"backbone.name must be one of {', '.join(backbones())}, or timm/NAME, "
            f"got {name!r}{hint}"
        )


def _own_backbone(name: str) -> Callable[..., Any] | None:
    if not name.startswith(TIMM):
        return OWN_BACKBONES.get(name)
    import timm

    return functools.partial(timm.create_model, name.removeprefix(TIMM), num_classes=0)


def _register_backbone(name: str) -> None:
    """Where the current generation looks constructors up; they get the method's name first."""
    own = _own_backbone(name)
    if own is not None:
        _base.BaseMethod._BACKBONES.setdefault(name, lambda method, **kwargs: own(**kwargs))


def backbone(name: str, stem: str, kwargs: Mapping[str, Any], image_size: int) -> Any:
    """A backbone alone, as solo-learn's methods build theirs."""
    check_backbone(name)
    kwargs = _backbone_kwargs(name, stem, kwargs, image_size)
    own = _own_backbone(name)
    if own is not None:
        return own(**kwargs)
    if CURRENT:
        made = _base.BaseMethod._BACKBONES[name]("base", **kwargs)
    else:
        made = _legacy_constructor(name)(**kwargs)
    if name.startswith("resnet"):  # what BaseMethod.__init__ does to it
        made.fc = torch.nn.Identity()
        if stem == "small":
            made.conv1 = torch.nn.Conv2d(3, 64, kernel_size=3, stride=1, padding=2, bias=False)
            made.maxpool = torch.nn.Identity()
    return made


def _legacy_constructor(name: str) -> Callable[..., Any]:
    """1.0.2 imports a method's constructors when it builds one: ResNets of torchvision, its own."""
    from_torchvision = name.startswith("resnet")
    module = "torchvision.models" if from_torchvision else "solo.utils.backbones"
    constructor: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return constructor


def _backbone_kwargs(
    name: str, stem: str, given: Mapping[str, Any], image_size: int
) -> dict[str, Any]:
    """The arguments of the backbone that is named; a recipe's may be those of another."""
    kwargs = {key: value for key, value in given.items() if value is not None}
    if name not in OWN_BACKBONES:
        kwargs = {key: value for key, value in kwargs.items() if key not in OWN_ARGUMENTS}
    if not name.startswith("resnet"):
        kwargs.pop("zero_init_residual", None)
    if name.startswith(("vit_", "swin_")):  # they are built for one size of image
        kwargs.setdefault("img_size", image_size)
    if name.startswith("swin_") and stem == "small":  # 1.0.2 does, for CIFAR
        kwargs.setdefault("window_size", 4)
    return kwargs


def _configured_kwargs(cfg: DictConfig) -> dict[str, Any]:
    chosen = cfg.backbone
    return _backbone_kwargs(chosen.name, chosen.stem, chosen.kwargs, cfg.dataset.get("image_size"))


def input_channels(cfg: DictConfig) -> int:
    """The channels that the backbone takes."""
    kwargs = _configured_kwargs(cfg)
    return int(kwargs.get("in_channels", kwargs.get("in_chans", 3)))


def current_config(cfg: DictConfig) -> DictConfig:
    """Our config as the current generation's. Optimiser, schedule, kNN and the scaling of the
    learning rate are ours; here they are switched off or neutral."""
    return OmegaConf.create(
        {
            "method": cfg.method.name,
            "backbone": {"name": cfg.backbone.name, "kwargs": _configured_kwargs(cfg)},
            "data": {
                # solo-learn keys the small stem of a ResNet on the data set's name.
                "dataset": "cifar10" if cfg.backbone.stem == "small" else "custom",
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
            "momentum": OmegaConf.to_container(cfg.method.get("momentum") or OmegaConf.create({})),
            "performance": {"disable_channel_last": True},
            "method_kwargs": OmegaConf.to_container(cfg.method.kwargs),
        }
    )


def legacy_arguments(cfg: DictConfig) -> dict[str, Any]:
    """Our config as 1.0.2's keyword arguments, neutral in the same places."""
    backbone_kwargs = _configured_kwargs(cfg)
    own = _own_backbone(cfg.backbone.name) is not None
    if not own:
        backbone_kwargs["cifar"] = cfg.backbone.stem == "small"
    arguments: dict[str, Any] = {
        # A name that 1.0.2 knows and does not treat as a ResNet; `base_model` sees to the rest.
        "encoder": "vit_tiny" if own else cfg.backbone.name,
        "backbone_args": backbone_kwargs,
        "num_classes": cfg.dataset.num_classes,
        "max_epochs": cfg.max_epochs,
        "batch_size": cfg.batch_size,
        "optimizer": "sgd",
        "lars": False,
        "lr": cfg.optimizer.lr,
        "weight_decay": cfg.optimizer.weight_decay,
        "classifier_lr": cfg.optimizer.classifier_lr,
        "exclude_bias_n_norm": False,
        "accumulate_grad_batches": 1,
        "extra_optimizer_args": {},
        "scheduler": "none",
        "min_lr": 0.0,
        "warmup_start_lr": 0.0,
        "warmup_epochs": 0,
        "num_large_crops": cfg.dataset.num_large_crops,
        "num_small_crops": cfg.dataset.num_small_crops,
        **OmegaConf.to_container(cfg.method.kwargs),
    }
    momentum = cfg.method.get("momentum")
    if momentum is not None:
        arguments |= {
            "base_tau_momentum": momentum.base_tau,
            "final_tau_momentum": momentum.final_tau,
            "momentum_classifier": momentum.classifier,
        }
    return arguments


def pretraining_transform(
    dataset: str, num_crops: int = 2, **strength: float
) -> Callable[[Any], list[Any]]:
    """solo-learn's own augmentation of one PIL image, for comparison with ours.

    ``strength`` takes our names (``crop_scale`` is its lower end), at their values in `Pipeline`.
    """
    if CURRENT:
        from solo.data import pretrain_dataloader as theirs

        transform = theirs.build_transform_pipeline(
            dataset,
            OmegaConf.create(
                {
                    "crop_size": strength["size"],
                    "rrc": {
                        "enabled": True,
                        "crop_min_scale": strength["crop_scale"],
                        "crop_max_scale": 1.0,
                    },
                    "color_jitter": {
                        "prob": strength["jitter"],
                        **{name: strength[name] for name in JITTER},
                    },
                    "grayscale": {"prob": strength["grey"]},
                    "gaussian_blur": {"prob": strength["blur"]},
                    "solarization": {"prob": strength["solarize"]},
                    "equalization": {"prob": 0.0},
                    "horizontal_flip": {"prob": strength["flip"]},
                }
            ),
        )
    else:
        from solo.utils import pretrain_dataloader as theirs

        transform = theirs.prepare_transform(
            dataset,
            color_jitter_prob=strength["jitter"],
            gray_scale_prob=strength["grey"],
            horizontal_flip_prob=strength["flip"],
            gaussian_prob=strength["blur"],
            solarization_prob=strength["solarize"],
            min_scale=strength["crop_scale"],
            max_scale=1.0,
            crop_size=strength["size"],
            **{name: strength[name] for name in JITTER},
        )
    return theirs.prepare_n_crop_transform([transform], [num_crops])  # type: ignore[no-any-return]


def pretraining_folder(root: str, transform: Callable[[Any], list[Any]]) -> Any:
    """solo-learn's own data set of an image folder: ``(index, views, label)`` by index."""
    if CURRENT:
        from solo.data import pretrain_dataloader as theirs

        return theirs.prepare_datasets("imagenet100", transform, train_data_path=root)
    from solo.utils import pretrain_dataloader as theirs

    return theirs.prepare_datasets("imagenet100", transform, data_dir=root, train_dir=".")


JITTER = ("brightness", "contrast", "saturation", "hue")
