"""The methods: solo-learn's, with a predictor, a spectral filter or nothing in its place.

An online filter takes the predictor's place, a target filter that of ``target_head``, behind the
target's projector. Both modules are there in every variant of SimSiam and BYOL: diagnostics record
their outputs. SwAV's target is its Sinkhorn assignment and DINO's is centred and sharpened, which
does a filter's work, so that there is no place for another.
"""

from __future__ import annotations

from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor, nn

from rdm_solo.filters.functions import takes_p
from rdm_solo.filters.schedules import Schedule, as_schedule
from rdm_solo.filters.spectral_filter import SpectralFilter
from rdm_solo.messages import check_number, check_whole
from rdm_solo.methods import optimizers, solo_learn
from rdm_solo.methods.descriptions import METHODS, ChosenFilter, method, shipped_filters
from rdm_solo.methods.symmetric import Center, symmetric_loss

__all__ = [
    "BYOL",
    "DINO",
    "FilteredBYOL",
    "FilteredSimSiam",
    "SimSiam",
    "SwAV",
    "SymSimSiam",
    "Symmetric",
    "build",
    "make_filter",
    "prepare",
]


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


class Configured:
    """Optimiser and schedule from our config, for any method of either generation."""

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__(cfg)  # type: ignore[call-arg]
        self.cfg_rdm = cfg

    def configure_optimizers(self) -> Any:
        return optimizers.configure(
            self.learnable_params,  # type: ignore[attr-defined]
            self.cfg_rdm,
            steps=int(self.trainer.estimated_stepping_batches),  # type: ignore[attr-defined]
        )


class Momentum:
    """A momentum encoder whose momentum goes on where a resumed run left it."""

    def on_train_start(self) -> None:
        super().on_train_start()  # type: ignore[misc]
        trainer = self.trainer  # type: ignore[attr-defined]
        self.last_step = trainer.global_step
        # The momentum is no part of solo-learn's checkpoints: a resumed run would start it anew.
        self.momentum_updater.update_tau(  # type: ignore[attr-defined]
            cur_step=trainer.global_step, max_steps=trainer.estimated_stepping_batches
        )


class _Filtered:
    """What SimSiam and BYOL add to solo-learn's: both heads and the schedule of p."""

    predictor: nn.Module  # of the online branch: solo-learn's, a linear one, a filter, or nothing
    target_head: nn.Module  # of the target branch: a filter, or nothing
    projector: nn.Sequential

    def _install(
        self, kind: str, spectral: SpectralFilter | None, target_projector: nn.Sequential
    ) -> None:
        """Put the filter of that name in its place; ``spectral`` is it, if it is spectral."""
        chosen = ChosenFilter(kind)
        width = self.projector[_last_linear(self.projector)].out_features
        self.target_head = nn.Identity()
        if chosen.linear:
            self.predictor = nn.Linear(width, width, bias=False)
        elif chosen.identity:
            self.predictor = nn.Identity()
        elif spectral is not None and spectral.branch == "online":
            self.predictor = spectral
        elif spectral is not None:
            self.predictor, self.target_head = nn.Identity(), spectral
        if spectral is not None:
            for projector in {self.projector, target_projector}:
                last = _last_linear(projector)
                projector[last] = Float32Linear.taking(projector[last])

    @property
    def filters(self) -> list[SpectralFilter]:
        return [m for m in (self.predictor, self.target_head) if isinstance(m, SpectralFilter)]

    def on_train_epoch_start(self) -> None:
        for module in self.filters:
            module.set_epoch(self.trainer.current_epoch)  # type: ignore[attr-defined]


def _last_linear(layers: nn.Sequential) -> int:
    return max(i for i, layer in enumerate(layers) if isinstance(layer, nn.Linear))


class FilteredSimSiam(_Filtered):
    """SimSiam's heads; ``linear`` drops the projector's last BN, as the paper does."""

    def install(self, kind: str, spectral: SpectralFilter | None) -> None:
        if ChosenFilter(kind).linear:
            self.projector = self.projector[:-1]
            self.projector[-1].bias.requires_grad = True  # no BN behind it cancels it any more
        self._install(kind, spectral, self.projector)

    def branches(self, feats: Tensor) -> tuple[Tensor, Tensor]:
        """Online output p and target of one view: one projection z, a head for each branch."""
        z = self.projector(feats)
        p = self.predictor(z)
        target = self.target_head(z)
        return p, target

    def forward(self, X: Tensor, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Features and, under ``eval()``, both outputs; a training step computes these itself."""
        out: dict[str, Tensor] = solo_learn.original("base").forward(self, X)
        if not self.training:  # type: ignore[attr-defined]
            out["p"], out["z"] = self.branches(out["feats"])
        return out

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """solo-learn's, whose own step takes the projection for the target as it is."""
        out = solo_learn.original("base").training_step(self, batch, batch_idx)
        (p1, target1), (p2, target2) = (self.branches(feats) for feats in out["feats"])
        loss = _minus_cosine(p1, target2) / 2 + _minus_cosine(p2, target1) / 2
        with torch.no_grad():
            stds = [_unit(target).std(dim=0).mean() for target in (target1, target2)]
        metrics = {"train_neg_cos_sim": loss, "train_z_std": sum(stds) / 2}
        self.log_dict(metrics, on_epoch=True, sync_dist=True)  # type: ignore[attr-defined]
        return loss + out["loss"]  # type: ignore[no-any-return]


def _minus_cosine(p: Tensor, target: Tensor) -> Tensor:
    """No gradient reaches the target."""
    return -nn.functional.cosine_similarity(p, target.detach(), dim=-1).mean()


def _unit(rows: Tensor) -> Tensor:
    return nn.functional.normalize(rows, dim=-1)


class FilteredBYOL(_Filtered):
    """BYOL's heads; its projector ends without BN, so ``linear`` drops none.

    solo-learn's step runs as it is: p is the predictor's output, and the target the momentum
    projector's, whose last layer is ``target_head``.
    """

    momentum_projector: nn.Sequential

    def install(self, kind: str, spectral: SpectralFilter | None) -> None:
        self._install(kind, spectral, self.momentum_projector)
        self.momentum_projector.append(self.target_head)


class SimSiam(FilteredSimSiam, Configured, solo_learn.adapted("simsiam")):
    """SimSiam (Chen & He, 2021)."""

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__(cfg)
        self.install(cfg.filter.name, make_filter(ChosenFilter.of(cfg), cfg.max_epochs))


class BYOL(FilteredBYOL, Configured, Momentum, solo_learn.adapted("byol")):
    """BYOL (Grill et al., 2020)."""

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__(cfg)
        self.install(cfg.filter.name, make_filter(ChosenFilter.of(cfg), cfg.max_epochs))


class SwAV(Configured, solo_learn.adapted("swav")):
    """SwAV (Caron et al., 2020): the target is the logits' Sinkhorn assignment."""

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__(cfg)
        # solo-learn 1.0.2 lets the prototypes' norms learn; the current generation holds them at 1.
        self.prototypes.weight_g.data.fill_(1)
        self.prototypes.weight_g.requires_grad = False

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """The queue is made when training starts, which is after a checkpoint is loaded."""
        self._queue = checkpoint["state_dict"].pop("queue", None)

    def on_train_start(self) -> None:
        super().on_train_start()
        saved = getattr(self, "_queue", None)
        if saved is not None and self.queue_size > 0:
            self.queue.copy_(saved)

    def get_assignments(self, preds: list[Tensor]) -> list[Tensor]:
        """In full precision: Sinkhorn's exponential overflows float16 and bf16 blurs its sums."""
        return super().get_assignments([logits.float() for logits in preds])  # type: ignore[no-any-return]


class DINO(Configured, Momentum, solo_learn.adapted("dino")):
    """DINO (Caron et al., 2021); without ``centring`` the centre stays at zero, without
    ``sharpening`` the target's temperature is the student's."""

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__(cfg)
        loss = self.dino_loss_func
        loss.center_momentum = cfg.method.center_momentum if cfg.method.centring else 1.0
        if not cfg.method.sharpening:
            loss.teacher_temp_schedule[:] = loss.student_temp


class Symmetric:
    """Two branches alike: a projector, no predictor, no stopped gradient.

    Algorithm 1 with a centre (``"ema"`` or ``"batch"``), the symmetric baseline without one.
    """

    def install(
        self, hidden: int, outputs: int, last_bn: bool, center: str | None, momentum: float
    ) -> None:
        inputs: int = self.features_dim  # type: ignore[attr-defined]
        self.projector = _projector(inputs, hidden, outputs, last_bn)
        self.center = None if center is None else Center(outputs, center, momentum)

    @property
    def learnable_params(self) -> list[dict[str, Any]]:
        projector = {"name": "projector", "params": self.projector.parameters()}
        return [*super().learnable_params, projector]  # type: ignore[misc]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        out = super().training_step(batch, batch_idx)  # type: ignore[misc]
        # Unit rows in full precision: the loss is a difference of nearly equal numbers.
        z1, z2 = (
            nn.functional.normalize(self.projector(feats).float(), dim=1) for feats in out["feats"]
        )
        mu = 0.0 if self.center is None else self.center(torch.cat([z1, z2]))
        loss = symmetric_loss(z1, z2, mu)
        metrics = {"train/loss": loss}
        self.log_dict(metrics, on_epoch=True, sync_dist=True)  # type: ignore[attr-defined]
        return loss + out["loss"]  # type: ignore[no-any-return]


class SymSimSiam(Symmetric, Configured, solo_learn.adapted("base")):
    """The paper's Algorithm 1 and, without a centre, the symmetric baseline."""

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__(cfg)
        settings, sizes = cfg.method, cfg.method.kwargs
        self.install(
            sizes.proj_hidden_dim,
            sizes.proj_output_dim,
            settings.last_bn,
            settings.get("center"),
            settings.get("center_momentum", 0.9),
        )


def _projector(inputs: int, hidden: int, outputs: int, last_bn: bool) -> nn.Sequential:
    """SimSiam's projector: three layers, each with BN, the last one's optional."""
    layers: list[nn.Module] = []
    for width in (inputs, hidden):
        layers += [nn.Linear(width, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU()]
    layers.append(nn.Linear(hidden, outputs, bias=not last_bn))
    if last_bn:
        layers.append(nn.BatchNorm1d(outputs, affine=False))
    return nn.Sequential(*layers)


# By name, as descriptions give it.
CLASSES = {known.__name__: known for known in (SimSiam, BYOL, SwAV, DINO, SymSimSiam)}


def build(cfg: DictConfig) -> Any:
    """The method that a config names."""
    described, chosen = method(cfg.method.name), ChosenFilter.of(cfg)
    solo_learn.check_backbone(cfg.backbone.name)
    _check_sizes(cfg.method)
    if not described.takes_filter and not chosen.absent:
        others = " or ".join(f"method={m.name}" for m in METHODS.values() if m.takes_filter)
        raise ValueError(
            f"filter={chosen.name}: method={described.name} has no place for one, since "
            f"{described.no_filter}; leave filter out, or choose {others}."
        )
    if described.takes_filter and chosen.absent:
        raise ValueError(
            f"filter=none: method={described.name} needs one; filter=identity puts nothing in its "
            "place, filter=learnable its own predictor."
        )
    if chosen.absent:
        make_filter(chosen, cfg.max_epochs)  # refuses a p that nothing would use
    return CLASSES[described.class_name](cfg)


# The largest number of units of a layer: two such layers in a row are 4 GB of weights.
MOST_UNITS = 2**15


def _check_sizes(settings: DictConfig) -> None:
    """Refuse sizes and momenta of heads that no model can have."""
    for name, value in settings.kwargs.items():
        if name.endswith("_dim") or name == "num_prototypes":
            most = MOST_UNITS if name.endswith("_dim") else 2**20
            check_whole(f"method.kwargs.{name}", value, 1, most)
        elif name.endswith("temperature") or name == "sk_epsilon":
            check_number(f"method.kwargs.{name}", value, above=0)
        elif name in ("sk_iters", "queue_size"):
            check_whole(f"method.kwargs.{name}", value)
    momentum = settings.get("momentum") or {}
    for name in ("base_tau", "final_tau"):
        if name in momentum:
            check_number(f"method.momentum.{name}", momentum[name], 0, 1)


def prepare(model: Any, cfg: DictConfig) -> Any:
    """Memory layout and compilation of the backbones; names in the state dict stay."""
    for backbone in (model.backbone, getattr(model, "momentum_backbone", None)):
        if backbone is not None and cfg.backbone.channels_last:
            backbone.to(memory_format=torch.channels_last)
        if backbone is not None and cfg.backbone.compile:
            named = isinstance(cfg.backbone.compile, str)
            backbone.compile(backend=cfg.backbone.compile if named else "inductor")
    return model


def make_filter(chosen: ChosenFilter, epochs: int) -> SpectralFilter | None:
    """The chosen spectral filter, or None; refuses a p that nothing would use."""
    p, function = chosen.p, chosen.function
    has_exponent = function is not None and takes_p(function)
    if p is not None and not has_exponent:
        shipped = shipped_filters().get(chosen.name)
        if shipped is not None and shipped.p is not None:  # its default p, behind another function
            raise ValueError(
                f"filter.function={chosen.function} has no exponent, but filter={chosen.name} sets "
                f"p={p}; add p=null, or start from filter=online_log1p."
            )
        raise ValueError(
            f"p={p} would be ignored: filter={chosen.name} has no exponent; "
            "leave p out, or choose filter=online_pow or filter=target_pow."
        )
    if p is None and has_exponent:
        raise ValueError(f"filter={chosen.name} needs an exponent: add p=NUMBER.")
    if function is None:
        return None
    schedule: Schedule | None = None if p is None else as_schedule(p, epochs=epochs)
    return SpectralFilter(chosen.branch, function, schedule)
