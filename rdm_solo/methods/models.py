"""The methods: solo-learn's, with a predictor, a spectral filter or nothing in its place.

An online filter takes the predictor's place, a target filter that of ``target_head``: behind the
target's projector or, where the target is drawn from a queue, behind the queue. Both modules are
there in every variant of a method with a predictor: diagnostics record their outputs. SwAV's target
is its Sinkhorn assignment and DINO's is centred and sharpened, which does a filter's work, so that
there is no place for another.

Most methods need no class here: :func:`of_solo_learn` makes theirs by their description.
"""

import functools
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor, nn

from rdm_solo.distributed import gather_equal, rank
from rdm_solo.filters.functions import takes_p
from rdm_solo.filters.schedules import as_schedule
from rdm_solo.filters.spectral_filter import SpectralFilter
from rdm_solo.messages import UserError
from rdm_solo.methods import optimizers, solo_learn
from rdm_solo.methods.chosen_filter import ChosenFilter, shipped_filters
from rdm_solo.methods.descriptions import Method


class Float32Linear(nn.Linear):
    """A linear layer that leaves autocast: half-precision outputs would lift the null direction
    that the batch norm behind it leaves to a thousandth of the largest singular value."""

    def __init__(self, layer: nn.Linear) -> None:
        bias = layer.bias is not None
        super().__init__(layer.in_features, layer.out_features, bias, device="meta")
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return super().forward(x.float())


class Configured:
    """Optimiser and schedule from our config, for any method of both versions."""

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__(cfg)
        self.cfg_rdm = cfg
        self._filled_later = [
            f"{path}.{name}"
            for path, module in self.named_modules()
            for name, buffer in module._buffers.items()
            if buffer is None
        ]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Without what a module fills when it is first called, such as All4One's positional
        encodings: the model that loads the checkpoint has no place for it yet."""
        super().on_save_checkpoint(checkpoint)
        for name in self._filled_later:
            checkpoint["state_dict"].pop(name, None)

    def configure_optimizers(self) -> Any:
        steps = int(self.trainer.estimated_stepping_batches)
        return optimizers.configure(self.learnable_params, self.cfg_rdm, steps)


class Momentum:
    """A momentum encoder that a resumed run goes on with, to the bit."""

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__(cfg)
        self.momentum_updater.update = self._update_in_place

    @torch.no_grad()
    def _update_in_place(self, online: nn.Module, momentum: nn.Module) -> None:
        """solo-learn's average, written into the weights themselves.

        Its own makes new tensors. Those of a convolution of one channel or 1x1 come out with other
        strides than a checkpoint's weights are loaded into, and oneDNN then sums in another order.
        """
        tau = self.momentum_updater.cur_tau
        for p, average in zip(online.parameters(), momentum.parameters()):
            average.copy_(tau * average + (1 - tau) * p)

    def on_train_start(self) -> None:
        super().on_train_start()
        self.last_step = self.trainer.global_step
        # The momentum is no part of solo-learn's checkpoints: a resumed run would start it anew.
        self.momentum_updater.update_tau(
            cur_step=self.last_step, max_steps=self.trainer.estimated_stepping_batches
        )


class _Filtered:
    """What a method with a predictor adds to solo-learn's: both heads and the schedule of p."""

    predictor: nn.Module  # of the online branch: solo-learn's, a linear one, a filter, or nothing
    target_head: nn.Module  # of the target branch: a filter, or nothing
    projector: nn.Sequential

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__(cfg)
        chosen = self.chosen_filter(cfg)
        self.install(chosen, make_filter(chosen, cfg.max_epochs))

    def chosen_filter(self, cfg: DictConfig) -> ChosenFilter:
        return ChosenFilter.of(cfg)

    def install(self, chosen: ChosenFilter, spectral: SpectralFilter | None) -> None:
        """Put the chosen filter in its place; ``spectral`` is it, if it is spectral."""
        projectors = {self.projector, getattr(self, "momentum_projector", self.projector)}
        self.target_head = nn.Identity()
        if chosen.linear:
            width = self.projector[_last_linear(self.projector)].out_features
            self.predictor = nn.Linear(width, width, bias=False)
        elif not chosen.own:
            self.predictor = nn.Identity()
        if spectral is not None:
            if spectral.branch == "online":
                self.predictor = spectral
            else:
                self.target_head = spectral
            for projector in projectors:
                last = _last_linear(projector)
                projector[last] = Float32Linear(projector[last])

    @property
    def filters(self) -> list[SpectralFilter]:
        return [m for m in (self.predictor, self.target_head) if isinstance(m, SpectralFilter)]

    def on_train_epoch_start(self) -> None:
        for module in self.filters:
            module.set_epoch(self.trainer.current_epoch)

    def on_train_epoch_end(self) -> None:
        for module in self.filters:
            module.report()


def _last_linear(layers: nn.Sequential) -> int:
    return max(i for i, layer in enumerate(layers) if isinstance(layer, nn.Linear))


class FilteredSimSiam(_Filtered):
    """SimSiam's heads; ``linear`` drops the projector's last BN, as the paper does."""

    def install(self, chosen: ChosenFilter, spectral: SpectralFilter | None) -> None:
        if chosen.linear:
            self.projector = self.projector[:-1]
            self.projector[-1].bias.requires_grad = True  # no BN behind it cancels it any more
        super().install(chosen, spectral)

    def branches(self, feats: Tensor) -> tuple[Tensor, Tensor]:
        """Online output p and target of one view: one projection z, a head for each branch."""
        z = self.projector(feats)
        p = self.predictor(z)
        target = self.target_head(z)
        return p, target

    def forward(self, X: Tensor) -> dict[str, Tensor]:
        """Features alone: solo-learn's would run both heads, and the training step runs them."""
        return solo_learn.TABLE["base"].forward(self, X)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """solo-learn's, whose own step takes the projection for the target as it is."""
        out = solo_learn.TABLE["base"].training_step(self, batch, batch_idx)
        (p1, target1), (p2, target2) = (self.branches(feats) for feats in out["feats"])
        loss = _minus_cosine(p1, target2) / 2 + _minus_cosine(p2, target1) / 2
        with torch.no_grad():
            rows = (nn.functional.normalize(target, dim=-1) for target in (target1, target2))
            std = sum(row.std(dim=0).mean() for row in rows) / 2
        metrics = {"train_neg_cos_sim": loss, "train_z_std": std}
        self.log_dict(metrics, on_epoch=True, sync_dist=True)
        return loss + out["loss"]


def _minus_cosine(p: Tensor, target: Tensor) -> Tensor:
    """No gradient reaches the target."""
    return -nn.functional.cosine_similarity(p, target.detach(), dim=-1).mean()


class FilteredBYOL(_Filtered):
    """BYOL's heads; its projector ends without BN, so ``linear`` drops none.

    solo-learn's step runs as it is: p is the predictor's output, and the target the momentum
    projector's, whose last layer is ``target_head``.
    """

    momentum_projector: nn.Sequential

    def install(self, chosen: ChosenFilter, spectral: SpectralFilter | None) -> None:
        super().install(chosen, spectral)
        self.momentum_projector.append(self.target_head)


class FilteredNeighbours(_Filtered):
    """The heads of a method whose target is an earlier output, the nearest to the other view's.

    The queue keeps what solo-learn puts into it, and the nearest are searched there. A target
    filter works on what was found, as one batch: that is what the loss compares p with.
    """

    def find_nn(self, z: Tensor) -> Any:
        index, nearest, *more = super().find_nn(z)
        nearest = self.target_head(nearest)
        if isinstance(self.target_head, SpectralFilter):  # losses take it for unit rows, as it was
            nearest = nn.functional.normalize(nearest, dim=-1)
        return index, nearest, *more


def make_filter(chosen: ChosenFilter, epochs: int) -> SpectralFilter | None:
    """The chosen spectral filter, or None; refuses a p that nothing would use."""
    p, function = chosen.p, chosen.function
    has_exponent = function is not None and takes_p(function)
    if p is not None and not has_exponent:
        shipped = shipped_filters().get(chosen.name)
        if shipped is not None and shipped.p is not None:  # its default p, behind another function
            raise UserError(
                f"filter.function={function} has no exponent, but filter={chosen.name} sets p={p}; "
                "add p=null, or start from filter=online_log1p."
            )
        raise UserError(
            f"p={p} would be ignored: filter={chosen.name} has no exponent; "
            "leave p out, or choose filter=online_pow or filter=target_pow."
        )
    if p is None and has_exponent:
        raise UserError(f"filter={chosen.name} needs an exponent: add p=NUMBER.")
    if function is None:
        return None
    schedule = None if p is None else as_schedule(p, epochs=epochs)
    return SpectralFilter(chosen.branch, function, schedule, chosen.solver)


class SimSiam(FilteredSimSiam, Configured, solo_learn.adapted("simsiam")):
    """SimSiam (Chen & He, 2021)."""


class BYOL(FilteredBYOL, Configured, Momentum, solo_learn.adapted("byol")):
    """BYOL (Grill et al., 2020)."""


class MadeAtStart:
    """State that solo-learn makes when training starts, which is after a checkpoint is loaded.

    ``made_at_start`` has the names of these buffers, each with the dimension along which every
    process has its own part.
    """

    made_at_start: dict[str, int]

    @property
    def _ddp_params_and_buffers_to_ignore(self) -> list[str]:
        """By this name torch asks which buffers are each process's own. All others it overwrites
        with the first process's before each step."""
        return list(self.made_at_start)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """The parts of all processes, one behind the other."""
        super().on_save_checkpoint(checkpoint)
        state = checkpoint["state_dict"]
        for name, dim in self.made_at_start.items():
            if name in state:
                whole = gather_equal(getattr(self, name).transpose(0, dim)).transpose(0, dim)
                state[name] = whole.contiguous()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        state = checkpoint["state_dict"]
        self._saved = {name: state.pop(name) for name in self.made_at_start if name in state}

    def on_train_start(self) -> None:
        loaded = getattr(self, "_saved", {})
        # A resumed run's random numbers are the checkpoint's, not to be spent on what is replaced.
        with torch.random.fork_rng(devices=[], enabled=bool(loaded)):
            super().on_train_start()
        for name, saved in loaded.items():
            buffer, dim = getattr(self, name, None), self.made_at_start[name]
            if buffer is None:
                continue
            rows = buffer.shape[dim]  # of this process
            first = rank() * rows if saved.shape[dim] > rows else 0
            part = saved.narrow(dim, first, min(rows, saved.shape[dim] - first))
            buffer.narrow(dim, 0, part.shape[dim]).copy_(part)


class SwAV(MadeAtStart, Configured, solo_learn.adapted("swav")):
    """SwAV (Caron et al., 2020): the target is the logits' Sinkhorn assignment."""

    made_at_start = {"queue": 1}

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__(cfg)
        # solo-learn 1.0.2 lets the prototypes' norms learn; the current version holds them at 1.
        self.prototypes.weight_g.data.fill_(1)
        self.prototypes.weight_g.requires_grad = False

    def get_assignments(self, preds: list[Tensor]) -> list[Tensor]:
        """In full precision: Sinkhorn's exponential overflows float16 and bf16 blurs its sums."""
        return super().get_assignments([logits.float() for logits in preds])


class _ClassifierLoss(solo_learn.TABLE["base"]):
    """Keeps the classifier's loss apart, of which solo-learn's methods return the sum alone."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        out = super().training_step(batch, batch_idx)
        self.classifier_loss = out["loss"]
        return out


class DeepClusterV2(MadeAtStart, Configured, solo_learn.adapted("deepclusterv2"), _ClassifierLoss):
    """DeepCluster v2 (Caron et al., 2020): the target is the image's cluster.

    The first epoch collects what k-means divides into clusters. Until then there is no target:
    solo-learn's loss is a mean over no image, which is NaN, with gradients of zero. Here that epoch
    has the same gradients, and no loss.
    """

    made_at_start = {"local_memory_index": 0, "local_memory_embeddings": 1}

    def on_train_epoch_start(self) -> None:
        super().on_train_epoch_start()
        self.assignments = self.assignments.to(self.device)  # where the images' indices are

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        if self.current_epoch:
            return loss
        of_no_image = loss - self.classifier_loss
        return self.classifier_loss + of_no_image.nan_to_num()

    def log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        if self.current_epoch or name not in self.loss_names:
            super().log(name, value, *args, **kwargs)


class Whitening(nn.Module):
    """Rows ``(N, k)`` around their mean with the identity for a covariance, by Cholesky.

    solo-learn's W-MSE calls functions that torch has removed, or will. Rows whose covariance has no
    Cholesky factor, such as those of a collapsed batch, come out as NaN, which ends the run.

    >>> z = Whitening()(torch.tensor([[1.0, 0.0], [3.0, 1.0], [2.0, 5.0]]))
    >>> torch.cov(z.mT).round(decimals=5).abs()
    tensor([[1., 0.],
            [0., 1.]])
    """

    def __init__(self, eps: float = 0.0) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(torch.promote_types(x.dtype, torch.float32))
            centred = x - x.mean(0)
            covariance = centred.mT @ centred / (len(x) - 1)
            identity = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
            covariance = (1 - self.eps) * covariance + self.eps * identity
            factor, failed = torch.linalg.cholesky_ex(covariance)
            factor = factor.where(failed == 0, torch.nan)
            return torch.linalg.solve_triangular(factor, centred.mT, upper=False).mT


class WMSE(Configured, solo_learn.adapted("wmse")):
    """W-MSE (Ermolov et al., 2021)."""

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__(cfg)
        self.whitening = Whitening(cfg.method.kwargs.whitening_eps)


class DINO(Configured, Momentum, solo_learn.adapted("dino")):
    """DINO (Caron et al., 2021); without ``centring`` the centre stays at zero, without
    ``sharpening`` the target's temperature is the student's."""

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__(cfg)
        loss = self.dino_loss_func
        loss.center_momentum = cfg.method.center_momentum if cfg.method.centring else 1.0
        if not cfg.method.sharpening:
            loss.teacher_temp_schedule[:] = loss.student_temp


@functools.cache
def of_solo_learn(described: Method) -> Any:
    """solo-learn's class of that method with what its description says that it needs."""
    parts: list[type] = [Configured]
    if not described.no_filter:
        parts.insert(0, FilteredNeighbours if described.neighbours else FilteredBYOL)
    if described.momentum:
        parts.append(Momentum)
    theirs = solo_learn.adapted(described.name)
    own = {"__doc__": f"{described.label}, as solo-learn has it.", "__module__": __name__}
    return type(theirs.__name__, (*parts, theirs), own)
