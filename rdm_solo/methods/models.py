"""The methods that take filters.

An online filter replaces the predictor. A target filter is the module ``target_head``, which comes
after the target's projector or, if the target is drawn from a queue, after the queue. A method that
takes filters always has both modules, and the diagnostics record their outputs.
"""

from collections.abc import Sequence
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, normalize

from rdm_solo.filters.spectral_filter import SpectralFilter
from rdm_solo.methods import solo_learn
from rdm_solo.methods.chosen_filter import ChosenFilter


class Float32Linear(nn.Linear):
    """A linear layer outside autocast.

    A batch norm that follows, as in SimSiam, centres the batch, so one singular value is zero if
    N <= k. Rounding to half precision would raise it to a thousandth of the largest one.
    """

    def forward(self, x: Tensor) -> Tensor:
        device = x.device.type
        with torch.autocast(device, enabled=False):
            return super().forward(x.float())


def use_float32(projector: nn.Sequential) -> None:
    """Take the projector's last linear layer out of autocast; its parameters stay the same."""
    linear = [layer for layer in projector if isinstance(layer, nn.Linear)]
    linear[-1].__class__ = Float32Linear  # keeps its parameters and their names in state dicts


class _Filtered:
    """Add a filter to a method that has a predictor, and update the schedule of p.

    ``predictor`` stays as solo-learn built it, or becomes the online filter, a linear layer or the
    identity. ``target_head`` is the target filter or the identity.
    """

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__(cfg)  # solo-learn builds the backbone, the projector and the predictor
        self.chosen = self.chosen_filter(cfg)
        # For filter=target_pow: {"target": SpectralFilter("target", "pow", p)}.
        spectral = self.chosen.modules(cfg.max_epochs)
        self.target_head = spectral.get("target", nn.Identity())
        if self.chosen.linear:
            first_layer = self.predictor[0]
            width = first_layer.in_features
            self.predictor = nn.Linear(width, width, bias=False)
        elif not self.chosen.unchanged:
            self.predictor = spectral.get("online", nn.Identity())
        self.filters = list(spectral.values())
        if spectral:
            use_float32(self.projector)
            if hasattr(self, "momentum_projector"):
                use_float32(self.momentum_projector)

    def chosen_filter(self, cfg: DictConfig) -> ChosenFilter:
        return ChosenFilter.from_config(cfg)

    def on_train_epoch_start(self) -> None:
        for spectral in self.filters:
            spectral.set_epoch(self.trainer.current_epoch)

    def on_train_epoch_end(self) -> None:
        for spectral in self.filters:
            spectral.report()


class FilteredSimSiam(_Filtered):
    """SimSiam with filters; ``linear`` drops the projector's last BN, as in the paper.

    ``method.stop_gradient`` is the branch whose projection gets no gradient, or none. A filter's W
    is a constant on both branches. ``method.loss`` is one of :data:`LOSSES`.
    """

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__(cfg)
        # In solo-learn's own config, ``method`` is a name, and the defaults hold.
        self.stopped = OmegaConf.select(cfg, "method.stop_gradient", default="target")
        loss = OmegaConf.select(cfg, "method.loss", default="cosine")
        self.compare = LOSSES[loss]
        if self.chosen.linear:
            self.projector = self.projector[:-1]
            last_layer = self.projector[-1]
            last_layer.bias.requires_grad = True  # the removed BN cancelled the bias
        head = self.target_head
        if isinstance(head, SpectralFilter):
            head.has_gradient = self.stopped != "target"

    def branches(self, feats: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Return the projection, the online output p and the target of each view."""
        online = [self.projector(x) for x in feats]
        target = online
        if self.stopped == "online":
            online = [z.detach() for z in online]
        if self.stopped == "target":
            target = [z.detach() for z in target]
        return online, outputs(self.predictor, online), outputs(self.target_head, target)

    def forward(self, X: Tensor) -> dict[str, Tensor]:
        """Return features only; solo-learn's forward would run the heads twice in a step."""
        base = solo_learn.TABLE["base"]
        return base.forward(self, X)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Replace solo-learn's step, which uses the unfiltered projection as the target."""
        base = solo_learn.TABLE["base"]
        out = base.training_step(self, batch, batch_idx)
        (z1, z2), (p1, p2), (target1, target2) = self.branches(out["feats"])
        loss1 = self.compare(z1, p1, target2)
        loss2 = self.compare(z2, p2, target1)
        loss = loss1 / 2 + loss2 / 2
        self.log("train_neg_cos_sim", loss, on_epoch=True, sync_dist=True)
        return loss + out["loss"]  # of the online classifier


def outputs(head: nn.Module, views: list[Tensor]) -> list[Tensor]:
    """Return a head's output for each view.

    A spectral filter decomposes all views in one call, so that the host waits once.
    """
    if isinstance(head, SpectralFilter):
        return list(head(torch.stack(views)))
    return [head(x) for x in views]


def minus_cosine(z: Tensor, p: Tensor, target: Tensor) -> Tensor:
    """Return minus the mean cosine of online output and target."""
    cosine = cosine_similarity(p, target, dim=-1)
    return -cosine.mean()


def squared_error(z: Tensor, p: Tensor, target: Tensor) -> Tensor:
    """Return the mean squared distance of online output and target, without normalisation."""
    error = p - target
    distance = error.square().sum(dim=-1)
    return distance.mean()


def iso_loss(z: Tensor, p: Tensor, target: Tensor) -> Tensor:
    r"""Return IsoLoss :math:`\|z - \mathrm{sg}(t + z - p)\|^2` (Halvagal et al., NeurIPS 2023).

    It has the value of :func:`squared_error` and, at the projection z, the gradient 2 (p - t)
    without the factor W.

    >>> z = torch.tensor([[1.0, 2.0]], requires_grad=True)
    >>> iso_loss(z, z * 0.5, torch.zeros(1, 2)).backward()
    >>> z.grad
    tensor([[1., 2.]])
    """
    shifted = (target + z - p).detach()
    return squared_error(z, p=z, target=shifted)


LOSSES = {
    "cosine": minus_cosine,
    "mse": squared_error,
    "iso": iso_loss,
}


class FilteredBYOL(_Filtered):
    """BYOL with filters; ``linear`` leaves the projector as it is.

    solo-learn's step uses the momentum projector's output as the target, so ``target_head`` becomes
    the last layer of the momentum projector.
    """

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__(cfg)
        self.momentum_projector.append(self.target_head)


class FilteredNeighbours(_Filtered):
    """A method with filters whose target is the nearest earlier output in a queue.

    solo-learn provides the queue and the search. A target filter transforms the nearest neighbours
    as one batch, since the loss compares p with them.
    """

    def find_nn(self, z: Tensor) -> Any:
        index, nearest, *more = super().find_nn(z)
        head = self.target_head
        nearest = head(nearest)
        if isinstance(head, SpectralFilter):  # solo-learn's losses expect unit rows
            nearest = normalize(nearest, dim=-1)
        return index, nearest, *more


class SimSiam(FilteredSimSiam, solo_learn.adapt("simsiam")):
    """SimSiam (Chen and He, 2021)."""


class BYOL(FilteredBYOL, solo_learn.adapt("byol")):
    """BYOL (Grill et al., 2020)."""


class NNSiam(FilteredNeighbours, solo_learn.adapt("nnsiam")):
    """SimSiam with the nearest earlier projection as the target."""


class NNBYOL(FilteredNeighbours, solo_learn.adapt("nnbyol")):
    """BYOL with the nearest earlier projection as the target."""


class NNCLR(FilteredNeighbours, solo_learn.adapt("nnclr")):
    """NNCLR (Dwibedi et al., 2021)."""


if solo_learn.CURRENT:  # 1.0.2 has no MoCo v3

    class MoCoV3(FilteredBYOL, solo_learn.adapt("mocov3")):
        """MoCo v3 (Chen et al., 2021)."""
