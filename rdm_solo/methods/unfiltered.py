"""Classes of methods that take no filter: SwAV, DINO, DeepCluster v2, W-MSE."""

from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor, nn

from rdm_solo.ground.distributed import gather_equal, rank
from rdm_solo.methods import solo_learn


class LateBuffers:
    """Save and restore buffers that solo-learn creates only when training starts.

    Checkpoints are loaded before that. ``late_buffers`` maps the buffers' names to the dimension
    along which they are split over processes.
    """

    @property
    def _ddp_params_and_buffers_to_ignore(self) -> list[str]:
        """Return the names of buffers that DDP must not broadcast from the first process."""
        return list(self.late_buffers)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the parts of all processes, concatenated."""
        super().on_save_checkpoint(checkpoint)
        state = checkpoint["state_dict"]
        for name, dim in self.late_buffers.items():
            if name in state:
                part = state[name].transpose(0, dim)
                rows = gather_equal(part)
                state[name] = rows.transpose(0, dim)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        state = checkpoint["state_dict"]
        self._saved = {}
        for name in self.late_buffers:
            if name in state:
                self._saved[name] = state.pop(name)

    def on_train_start(self) -> None:
        saved_buffers = getattr(self, "_saved", {})
        # A resumed run replaces the initial values below, so drawing them must not change its RNG.
        resumed = bool(saved_buffers)
        with torch.random.fork_rng(devices=[], enabled=resumed):
            super().on_train_start()
        for name, saved in saved_buffers.items():
            buffer = getattr(self, name)
            dim = self.late_buffers[name]
            parts = saved.split(buffer.shape[dim], dim)
            part = parts[rank()]
            # The last part can be shorter if the number of processes has changed.
            rows = buffer.narrow(dim, 0, part.shape[dim])
            rows.copy_(part)


class SwAV(LateBuffers, solo_learn.adapt("swav")):
    """SwAV (Caron et al., 2020): the target is the Sinkhorn assignment of the logits."""

    late_buffers = {"queue": 1}

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__(cfg)
        # solo-learn 1.0.2 learns the prototypes' norms; the current version fixes them at 1.
        norms = self.prototypes.weight_g
        norms.data.fill_(1)
        norms.requires_grad = False

    def get_assignments(self, preds: list[Tensor]) -> list[Tensor]:
        """Compute in float32: the exponential overflows in float16, and bf16 is too coarse."""
        preds = [logits.float() for logits in preds]
        return super().get_assignments(preds)


class DeepClusterV2(LateBuffers, solo_learn.adapt("deepclusterv2")):
    """DeepCluster v2 (Caron et al., 2020): the target is the image's cluster.

    The first epoch only collects outputs for k-means, and has no target yet. The loss of solo-learn
    1.0.2 and 1.0.6 is then a mean over zero images: NaN, with zero gradients. We replace it by 0
    and do not log it.
    """

    late_buffers = {
        "local_memory_index": 0,
        "local_memory_embeddings": 1,
    }

    def on_train_epoch_start(self) -> None:
        super().on_train_epoch_start()
        # Where the images' indices are.
        self.assignments = self.assignments.to(self.device)

    def log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        first_epoch = self.current_epoch == 0
        if first_epoch and name == "train_deepcluster_loss":
            value.nan_to_num_()  # in place: solo-learn then adds the classifier's loss to it
        else:
            super().log(name, value, *args, **kwargs)


class Whitening(nn.Module):
    """Centre rows ``(N, k)`` and whiten them by Cholesky, so that their covariance is the identity.

    solo-learn's W-MSE calls deprecated torch functions. If the covariance has no Cholesky factor,
    as in a collapsed batch, all rows become NaN, which stops the run.

    >>> z = Whitening()(torch.tensor([[1.0, 0.0], [3.0, 1.0], [2.0, 5.0]]))
    >>> torch.cov(z.mT).round(decimals=5).abs()
    tensor([[1., 0.],
            [0., 1.]])
    """

    def __init__(self, eps: float = 0.0) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        device = x.device.type
        dtype = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(device, enabled=False):
            x = x.to(dtype)
            centred = x - x.mean(0)
            gram = centred.mT @ centred
            covariance = gram / (len(x) - 1)
            covariance = (1 - self.eps) * covariance
            covariance.diagonal().add_(self.eps)
            factor, failed = torch.linalg.cholesky_ex(covariance)
            succeeded = failed == 0
            factor = factor.where(succeeded, torch.nan)
            columns = torch.linalg.solve_triangular(factor, centred.mT, upper=False)
            return columns.mT


class WMSE(solo_learn.adapt("wmse")):
    """W-MSE (Ermolov et al., 2021)."""

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__(cfg)
        eps = cfg.method.kwargs.whitening_eps
        self.whitening = Whitening(eps)


class DINO(solo_learn.adapt("dino")):
    """DINO (Caron et al., 2021); centring and sharpening can be switched off."""

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__(cfg)
        loss = self.dino_loss_func
        loss.center_momentum = cfg.method.center_momentum
        if not cfg.method.centring:
            loss.center_momentum = 1.0  # the centre stays zero
        if not cfg.method.sharpening:
            loss.teacher_temp_schedule[:] = loss.student_temp
