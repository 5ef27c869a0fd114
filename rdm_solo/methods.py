"""SimSiam and BYOL with a predictor, a linear one, a spectral filter, or none; SwAV and DINO as
they are; and two symmetric baselines.

An online filter takes the predictor's place. A target filter stands behind the target's projector,
by a forward hook, so that solo-learn's training steps run as they are: on SimSiam, where one
projector serves both branches, the predictor's own hook hands it the unfiltered projection.
`predictor` and `target_head` are there in every variant, which is where diagnostics listen.

SwAV's target is its Sinkhorn assignment and DINO's is centred and sharpened: these do the filter's
work, so that there is no place for another.
"""

from __future__ import annotations

from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from rdm_solo import host, optim
from rdm_solo.filters import SpectralFilter, takes_p
from rdm_solo.schedules import Schedule, as_schedule, suggest
from rdm_solo.symmetric import Center, symmetric_loss

__all__ = [
    "BYOL",
    "DINO",
    "METHODS",
    "SimSiam",
    "SwAV",
    "SymSimSiam",
    "Vanilla",
    "build",
    "make_filter",
    "prepare",
]

# Why a method has no place for a filter.
NO_FILTER = {
    "swav": "its Sinkhorn assignment is the target's filter",
    "dino": "centring and sharpening are the target's filter",
    "symsimsiam": "its two branches are alike, which is its point",
    "vanilla": "its two branches are alike, which is its point",
}


class Float32Linear(nn.Linear):
    """A linear layer that leaves autocast: half-precision outputs would lift the null direction
    that the batch norm behind it leaves to a thousandth of the largest singular value."""

    @classmethod
    def taking(cls, layer: nn.Linear) -> Float32Linear:
        new = cls(layer.in_features, layer.out_features, layer.bias is not None, device="meta")
        new.weight = layer.weight
        if layer.bias is not None:
            new.bias = layer.bias
        return new

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return nn.functional.linear(x.float(), self.weight, self.bias)


class _Configured:
    """Optimiser and schedule from our config, for any method of either generation."""

    cfg_rdm: DictConfig

    def configure_optimizers(self) -> Any:
        return optim.configure(
            self.learnable_params,  # type: ignore[attr-defined]
            self.cfg_rdm,
            steps=int(self.trainer.estimated_stepping_batches),  # type: ignore[attr-defined]
        )


class _Momentum:
    """A momentum encoder whose momentum goes on where a resumed run left it."""

    def on_train_start(self) -> None:
        super().on_train_start()  # type: ignore[misc]
        trainer = self.trainer  # type: ignore[attr-defined]
        self.last_step = trainer.global_step
        # The momentum is no part of solo-learn's checkpoints: a resumed run would start it anew.
        self.momentum_updater.update_tau(  # type: ignore[attr-defined]
            cur_step=trainer.global_step, max_steps=trainer.estimated_stepping_batches
        )


class _Filtered(_Configured):
    """What SimSiam and BYOL add to solo-learn's: the heads and the schedule of p."""

    predictor: nn.Module
    projector: nn.Sequential

    def _install(self, cfg: DictConfig, target_projector: nn.Module) -> None:
        self.cfg_rdm = cfg
        kind = cfg.filter.name
        width = cfg.method.kwargs.proj_output_dim
        self.target_head: nn.Module = nn.Identity()
        spectral = make_filter(cfg)
        if kind == "linear":
            self.predictor = nn.Linear(width, width, bias=False)
        elif kind == "identity":
            self.predictor = nn.Identity()
        elif spectral is not None and spectral.branch == "online":
            self.predictor = spectral
        elif spectral is not None:
            self.predictor, self.target_head = nn.Identity(), spectral
        if spectral is not None:
            for projector in {self.projector, target_projector}:
                last = max(i for i, m in enumerate(projector) if isinstance(m, nn.Linear))
                projector[last] = Float32Linear.taking(projector[last])
        target_projector.register_forward_hook(self._filter_target)

    def _filter_target(self, module: nn.Module, args: Any, z: Tensor) -> Tensor:
        target: Tensor = self.target_head(z)
        return target

    @property
    def filters(self) -> list[SpectralFilter]:
        return [m for m in (self.predictor, self.target_head) if isinstance(m, SpectralFilter)]

    def on_train_epoch_start(self) -> None:
        for module in self.filters:
            module.set_epoch(self.trainer.current_epoch)  # type: ignore[attr-defined]


class SimSiam(_Filtered, host.SimSiam):
    """SimSiam (Chen & He, 2021); ``linear`` drops the projector's last BN, as the paper does."""

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__(cfg)
        if cfg.filter.name == "linear":
            self.projector = self.projector[:-1]
            self.projector[-1].bias.requires_grad = True  # no BN behind it cancels it any more
        self._install(cfg, self.projector)
        self.predictor.register_forward_pre_hook(_unfiltered)

    def _filter_target(self, module: nn.Module, args: Any, z: Tensor) -> Tensor:
        target = super()._filter_target(module, args, z)
        if target is not z:
            target.unfiltered = z  # type: ignore[attr-defined]
        return target


def _unfiltered(predictor: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
    return (getattr(args[0], "unfiltered", args[0]),)


class BYOL(_Filtered, _Momentum, host.BYOL):
    """BYOL (Grill et al., 2020); its projector ends without BN, so ``linear`` drops none."""

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__(cfg)
        self._install(cfg, self.momentum_projector)


class SwAV(_Configured, host.SwAV):
    """SwAV (Caron et al., 2020): the target is the logits' Sinkhorn assignment."""

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__(cfg)
        self.cfg_rdm = cfg
        # solo-learn 1.0.2 lets the prototypes' norms learn; the current generation holds them at 1.
        self.prototypes.weight_g.data.fill_(1)
        self.prototypes.weight_g.requires_grad = False


class DINO(_Configured, _Momentum, host.DINO):
    """DINO (Caron et al., 2021); without ``centring`` the centre stays at zero, without
    ``sharpening`` the target's temperature is the student's."""

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__(cfg)
        self.cfg_rdm = cfg
        loss = self.dino_loss_func
        loss.center_momentum = cfg.method.center_momentum if cfg.method.centring else 1.0
        if not cfg.method.sharpening:
            loss.teacher_temp_schedule[:] = loss.student_temp


class _Symmetric(_Configured, host.BaseMethod):
    """Two branches alike: a projector, no predictor, no stopped gradient."""

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__(cfg)
        self.cfg_rdm = cfg
        sizes = cfg.method.kwargs
        self.projector = _projector(
            self.features_dim, sizes.proj_hidden_dim, sizes.proj_output_dim, cfg.method.last_bn
        )

    @property
    def learnable_params(self) -> list[dict[str, Any]]:
        projector = {"name": "projector", "params": self.projector.parameters()}
        return [*super().learnable_params, projector]

    def center(self, z: Tensor) -> Tensor | float:
        """What is taken off the outputs of both views, ``(2 N, k)``, before they are aligned."""
        return 0.0

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        out = super().training_step(batch, batch_idx)
        # Unit rows in full precision: theirs is a difference of nearly equal numbers.
        z1, z2 = (
            nn.functional.normalize(self.projector(feats).float(), dim=1) for feats in out["feats"]
        )
        loss = symmetric_loss(z1, z2, self.center(torch.cat([z1, z2])))
        self.log_dict({"train/loss": loss}, on_epoch=True, sync_dist=True)
        return loss + out["loss"]


class Vanilla(_Symmetric):
    """The symmetric baseline: nothing but the projector's last BN keeps it from one point."""


class SymSimSiam(_Symmetric):
    """The paper's Algorithm 1: the outputs' centre is taken off before they are aligned."""

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__(cfg)
        method = cfg.method
        self.running_center = Center(
            method.kwargs.proj_output_dim, method.center, method.center_momentum
        )

    def center(self, z: Tensor) -> Tensor | float:
        return self.running_center(z)  # type: ignore[no-any-return]


def _projector(inputs: int, hidden: int, outputs: int, last_bn: bool) -> nn.Sequential:
    """SimSiam's projector: three layers, each with BN, the last one's optional."""
    layers: list[nn.Module] = []
    for width in (inputs, hidden):
        layers += [nn.Linear(width, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU()]
    layers.append(nn.Linear(hidden, outputs, bias=not last_bn))
    if last_bn:
        layers.append(nn.BatchNorm1d(outputs, affine=False))
    return nn.Sequential(*layers)


METHODS = {
    "simsiam": SimSiam,
    "byol": BYOL,
    "swav": SwAV,
    "dino": DINO,
    "symsimsiam": SymSimSiam,
    "vanilla": Vanilla,
}


def build(cfg: DictConfig) -> Any:
    """The method that a config names."""
    name = cfg.method.name
    if name not in METHODS:
        hint = suggest(name, list(METHODS)) or "."
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {name!r}{hint}")
    host.check_backbone(cfg.backbone.name)
    if name in NO_FILTER and cfg.filter.name != "none":
        raise ValueError(
            f"filter={cfg.filter.name}: method={name} has no place for one, since "
            f"{NO_FILTER[name]}; leave filter out, or choose method=simsiam or method=byol."
        )
    if name not in NO_FILTER and cfg.filter.name == "none":
        raise ValueError(
            f"filter=none: method={name} needs one; filter=identity puts nothing in its place, "
            "filter=learnable its own predictor."
        )
    if name in NO_FILTER:
        make_filter(cfg)  # refuses a p that nothing would use
    return METHODS[name](cfg)


def prepare(model: Any, cfg: DictConfig) -> Any:
    """Memory layout and compilation of the backbones; names in the state dict stay."""
    for backbone in (model.backbone, getattr(model, "momentum_backbone", None)):
        if backbone is not None and cfg.backbone.channels_last:
            backbone.to(memory_format=torch.channels_last)
        if backbone is not None and cfg.backbone.compile:
            backbone.compile()
    return model


def make_filter(cfg: DictConfig) -> SpectralFilter | None:
    """The spectral filter that a config asks for, or None; refuses a p that nothing would use."""
    p = OmegaConf.to_container(cfg.p) if OmegaConf.is_config(cfg.p) else cfg.p
    function = cfg.filter.get("function")
    if isinstance(function, str) and "." in function:
        import hydra.utils

        function = hydra.utils.get_method(function)
    if function is None or not takes_p(function):
        if p is not None:
            named = f"filter={cfg.filter.name}"
            if cfg.filter.name.endswith("_pow"):  # its default p, behind a function of one's own
                raise ValueError(
                    f"filter.function={cfg.filter.function} has no exponent, but {named} sets "
                    f"p={p}; add p=null, or start from filter=online_log1p."
                )
            raise ValueError(
                f"p={p} would be ignored: {named} has no exponent; "
                "leave p out, or choose filter=online_pow or filter=target_pow."
            )
    elif p is None:
        raise ValueError(f"filter={cfg.filter.name} needs an exponent: add p=NUMBER.")
    if function is None:
        return None
    schedule: Schedule | None = None if p is None else as_schedule(p, epochs=cfg.max_epochs)
    return SpectralFilter(cfg.filter.branch, function, schedule)
