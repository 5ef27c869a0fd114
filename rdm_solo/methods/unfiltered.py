"""Methods whose target takes no filter and that need a class: SwAV, DINO, DeepCluster v2, W-MSE."""

from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor, nn

from rdm_solo.distributed import gather_equal, rank
from rdm_solo.methods import solo_learn
from rdm_solo.methods.models import Configured, Momentum


class MadeAtStart:
    """State that solo-learn creates when training starts, which is after a checkpoint is loaded.

    ``made_at_start`` maps the names of these buffers to the dimension along which each process has
    a part of its own.
    """

    made_at_start: dict[str, int]

    @property
    def _ddp_params_and_buffers_to_ignore(self) -> list[str]:
        """The buffers that DDP must not overwrite with the first process's before each step."""
        return list(self.made_at_start)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the parts of all processes, concatenated."""
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
        # What is drawn here is replaced, so a resumed run must not consume random numbers for it.
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
        # solo-learn 1.0.2 learns the prototypes' norms; the current version fixes them at 1.
        self.prototypes.weight_g.data.fill_(1)
        self.prototypes.weight_g.requires_grad = False

    def get_assignments(self, preds: list[Tensor]) -> list[Tensor]:
        """Compute in float32: Sinkhorn's exponential overflows float16 and bf16 blurs its sums."""
        return super().get_assignments([logits.float() for logits in preds])


class _ClassifierLoss(solo_learn.TABLE["base"]):
    """Keeps the classifier's loss, which solo-learn's methods return only as part of the sum."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        out = super().training_step(batch, batch_idx)
        self.classifier_loss = out["loss"]
        return out


class DeepClusterV2(MadeAtStart, Configured, solo_learn.adapted("deepclusterv2"), _ClassifierLoss):
    """DeepCluster v2 (Caron et al., 2020): the target is the image's cluster.

    The first epoch collects the outputs that k-means clusters, and has no target yet. solo-learn's
    loss is then a mean over no image: NaN, with gradients of zero. Here that epoch has the same
    gradients and no loss.
    """

    made_at_start = {"local_memory_index": 0, "local_memory_embeddings": 1}

    def on_train_epoch_start(self) -> None:
        super().on_train_epoch_start()
        self.assignments = self.assignments.to(self.device)  # like the images' indices

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
    """Centre rows ``(N, k)`` and whiten them by Cholesky, so that their covariance is the identity.

    solo-learn's W-MSE calls functions that torch removes. Rows whose covariance has no Cholesky
    factor, such as those of a collapsed batch, become NaN, which ends the run.

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
    """DINO (Caron et al., 2021); centring and sharpening can be switched off."""

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__(cfg)
        loss = self.dino_loss_func
        loss.center_momentum = cfg.method.center_momentum if cfg.method.centring else 1.0
        if not cfg.method.sharpening:
            loss.teacher_temp_schedule[:] = loss.student_temp
