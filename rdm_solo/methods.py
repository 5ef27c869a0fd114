"""SimSiam and BYOL with a predictor, a linear one, a spectral filter, or none.

An online filter takes the predictor's place. A target filter stands behind the target's projector,
by a forward hook, so that solo-learn's training steps run as they are: on SimSiam, where one
projector serves both branches, the predictor's own hook hands it the unfiltered projection.
`predictor` and `target_head` are there in every variant, which is where diagnostics listen.
"""

from __future__ import annotations

from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from rdm_solo import host, optim
from rdm_solo.filters import SpectralFilter, takes_p
from rdm_solo.schedules import Schedule, as_schedule, suggest

__all__ = ["BYOL", "METHODS", "SimSiam", "build", "make_filter"]


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


class _Filtered:
    """What both methods add to solo-learn's: the heads, the optimiser, the schedule of p."""

    cfg_rdm: DictConfig
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

    def configure_optimizers(self) -> Any:
        return optim.configure(
            self.learnable_params,  # type: ignore[attr-defined]
            self.cfg_rdm,
            steps=int(self.trainer.estimated_stepping_batches),  # type: ignore[attr-defined]
        )


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


class BYOL(_Filtered, host.BYOL):
    """BYOL (Grill et al., 2020); its projector ends without BN, so ``linear`` drops none."""

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__(cfg)
        self._install(cfg, self.momentum_projector)

    def on_train_start(self) -> None:
        super().on_train_start()
        self.last_step = self.trainer.global_step
        # The momentum is no part of solo-learn's checkpoints: a resumed run would start it anew.
        self.momentum_updater.update_tau(
            cur_step=self.trainer.global_step, max_steps=self.trainer.estimated_stepping_batches
        )


METHODS = {"simsiam": SimSiam, "byol": BYOL}


def build(cfg: DictConfig) -> Any:
    """The method that a config names."""
    if cfg.method.name not in METHODS:
        raise ValueError(
            f"method must be one of {', '.join(METHODS)}, got {cfg.method.name!r}"
            f"{suggest(cfg.method.name, list(METHODS))}."
        )
    if cfg.backbone.name not in host.BACKBONES:
        raise ValueError(
            f"backbone.name must be one of {', '.join(host.BACKBONES)}, "
            f"got {cfg.backbone.name!r}{suggest(cfg.backbone.name, list(host.BACKBONES))}."
        )
    return METHODS[cfg.method.name](cfg)


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
