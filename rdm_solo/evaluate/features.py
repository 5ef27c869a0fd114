"""Compute features of a frozen backbone, from clean or augmented images."""

from collections.abc import Iterator

import torch
from omegaconf import DictConfig
from torch import Tensor, nn

from rdm_solo.data import Loader, Pipeline, Views
from rdm_solo.ground.errors import UserError
from rdm_solo.ground.values import check_choice

CHUNK = 512  # images per forward pass


def choose_device(name: str) -> torch.device:
    """Return the named device; ``gpu`` means ``cuda``, ``auto`` means a GPU if there is one."""
    check_choice("device", name, ("auto", "cpu", "cuda", "gpu"))
    available = torch.cuda.is_available()
    if name in ("cuda", "gpu") and not available:
        raise UserError(f"device={name}, but torch {torch.__version__} finds no GPU; use cpu.")
    return torch.device("cuda" if available and name != "cpu" else "cpu")


def evaluation_views(views: Views, augmentation: DictConfig) -> Views:
    """Return views of the training size that are only cropped, resized and flipped."""
    pipeline = views.pipelines[0]
    default_scale = pipeline.crop_scale if pipeline.crop_scale[0] > 0.5 else (0.08, 1.0)
    crop_scale = default_scale if augmentation.crop_scale is None else augmentation.crop_scale
    flip = pipeline.flip if augmentation.flip is None else augmentation.flip
    return Views([Pipeline(pipeline.size, 1, crop_scale, flip=flip, jitter=0.0, grey=0.0)])


def extract(backbone: nn.Module, loader: Loader) -> tuple[Tensor, Tensor]:
    """Return features ``(N, d)`` and labels of all clean images that can be read, on the CPU."""
    features, labels = zip(*((represent(backbone, x).cpu(), y.cpu()) for x, y in loader))
    loader.report_skipped()
    return torch.cat(features), torch.cat(labels)


def augmented(backbone: nn.Module, loader: Loader, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the features and labels of one epoch of augmented images, batch by batch."""
    loader.set_epoch(epoch)
    for _, (x,), labels in loader:
        yield represent(backbone, x), labels
    loader.report_skipped()


@torch.no_grad()
def represent(backbone: nn.Module, x: Tensor) -> Tensor:
    """Return the features ``(n, d)`` of images, computed in chunks that fit into memory."""
    return torch.cat([backbone(chunk).float() for chunk in torch.split(x, CHUNK)])


def channels(backbone: nn.Module) -> int:
    """Return the number of image channels that a backbone expects."""
    return next(m.in_channels for m in backbone.modules() if isinstance(m, nn.Conv2d))
