"""Symmetric alignment of two views, with or without centring (the paper's section 3)."""

from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn
from torch.nn.functional import normalize

from rdm_solo.ground.distributed import sum_over_processes, world_size
from rdm_solo.ground.values import check_choice
from rdm_solo.methods import solo_learn


def symmetric_loss(z1: Tensor, z2: Tensor, center: Tensor | float = 0.0) -> Tensor:
    r"""Align two views: :math:`-\mathbb{E}\,(z_1 - \mu)^\top (z_2 - \mu)` (Algorithm 1).

    If the rows are unit vectors and :math:`\mu` is their mean over both views, it equals the loss
    without a centre, minus the variance, plus one (Theorem 1).
    Shapes: ``(N, k), (N, k), (k,) -> ()``.

    >>> z1 = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> mu = z1.mean(0)
    >>> variance = (z1 - mu).square().sum(1).mean()
    >>> symmetric_loss(z1, z1, mu) == symmetric_loss(z1, z1) - variance + 1
    tensor(True)
    """
    z1 = z1 - center
    z2 = z2 - center
    products = (z1 * z2).sum(1)
    return -products.mean()


class Center(nn.Module):
    """The mean of the global batch's outputs, or an exponential moving average of it.

    No gradient flows through it; for ``kind="batch"`` the loss's gradient would be the same.

    Args:
        dim: k, the outputs' dimension.
        kind: ``"ema"`` (Algorithm 1) or ``"batch"``.
        momentum: weight of the previous average in an update.

    >>> center = Center(2, "ema", momentum=0.9)
    >>> center(torch.tensor([[1.0, 0.0], [1.0, 2.0]]))
    tensor([0.1000, 0.1000])
    """

    def __init__(self, dim: int, kind: str = "ema", momentum: float = 0.9) -> None:
        super().__init__()
        check_choice("method.center", kind, ("ema", "batch"))
        self.momentum = momentum
        if kind == "batch":
            self.momentum = 0.0
        self.register_buffer("value", torch.zeros(dim))

    @torch.no_grad()
    def forward(self, z: Tensor) -> Tensor:
        """Update the centre with outputs ``z`` of shape ``(N, k)`` and return it."""
        mean = z.float().mean(0)
        mean = sum_over_processes(mean) / world_size()
        self.value.lerp_(mean, 1 - self.momentum)
        return self.value.clone()


class OneProjector:
    """One projector for all views, without predictor and stop-gradient.

    A subclass has a method ``compare``, the loss of the views' projections in float32.
    """

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__(cfg)
        if OmegaConf.is_config(cfg.method):
            options = {**cfg.method.kwargs, **cfg.method}
        else:  # solo-learn's own config
            options = cfg.method_kwargs
        self.options = options

        # SimSiam's projector: three layers with BN, which is optional after the last.
        hidden = options["proj_hidden_dim"]
        outputs = options["proj_output_dim"]
        last_bn = options["last_bn"]
        self.projector = nn.Sequential(
            nn.Linear(self.features_dim, hidden, bias=False),
            nn.BatchNorm1d(hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden, bias=False),
            nn.BatchNorm1d(hidden),
            nn.ReLU(),
            nn.Linear(hidden, outputs, bias=not last_bn),
        )
        if last_bn:
            self.projector.append(nn.BatchNorm1d(outputs, affine=False))

    @property
    def learnable_params(self) -> list[dict[str, Any]]:
        projector = {"name": "projector", "params": self.projector.parameters()}
        return [*super().learnable_params, projector]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        out = super().training_step(batch, batch_idx)
        views = []
        for feats in out["feats"]:
            z = self.projector(feats)
            views.append(z.float())
        with torch.autocast(views[0].device.type, enabled=False):
            loss = self.compare(views)
        self.log("train/loss", loss, on_epoch=True, sync_dist=True)
        return loss + out["loss"]


class Standalone(OneProjector, solo_learn.adapt("base")):
    """A method that a run's config describes completely."""


class Symmetric(OneProjector):
    """With a centre (``"ema"`` or ``"batch"``) this is Algorithm 1, and without it the baseline."""

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__(cfg)
        kind = self.options.get("center")
        self.center = None
        if kind is not None:
            outputs = self.options["proj_output_dim"]
            momentum = self.options["center_momentum"]
            self.center = Center(outputs, kind, momentum)

    def compare(self, views: list[Tensor]) -> Tensor:
        # Unit rows in full precision: the loss is a difference of nearly equal numbers.
        z1, z2 = views
        z1 = normalize(z1, dim=1)
        z2 = normalize(z2, dim=1)
        if self.center is None:
            return symmetric_loss(z1, z2)
        both_views = torch.cat([z1, z2])
        center = self.center(both_views)
        return symmetric_loss(z1, z2, center)


class SymSimSiam(Symmetric, Standalone):
    """The paper's Algorithm 1 and, without a centre, the symmetric baseline."""
