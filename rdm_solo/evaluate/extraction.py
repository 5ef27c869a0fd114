"""Compute features of a frozen backbone, from clean or augmented images."""

from collections.abc import Iterator

import torch
from omegaconf import DictConfig
from torch import Tensor, nn

from rdm_solo.data import Loader, Pipeline, Views
from rdm_solo.ground.errors import UserError
from rdm_solo.ground.values import check_choice
from rdm_solo.observe.outputs import rows

CHUNK = 512  # images per forward pass


def choose_device(name: str) -> torch.device:
    """Return the named device; ``gpu`` means ``cuda``, ``auto`` means a GPU if there is one."""
    check_choice("device", name, ("auto", "cpu", "cuda", "gpu"))
    if name != "cpu" and torch.cuda.is_available():
        return torch.device("cuda")
    if name in ("cuda", "gpu"):
        raise UserError(f"device={name}, but torch {torch.__version__} finds no GPU; use cpu.")
    return torch.device("cpu")


def evaluation_views(views: Views, augmentation: DictConfig) -> Views:
    """Return views of the training size that are only cropped, resized and flipped."""
    training = views.pipelines[0]
    crop_scale = augmentation.crop_scale
    if crop_scale is None:
        # torchvision's default, unless it would destroy what training crops less: digits.
        crop_scale = (0.08, 1.0)
        if training.crop_scale[0] > 0.5:
            crop_scale = training.crop_scale
    flip = augmentation.flip
    if flip is None:
        flip = training.flip
    pipeline = Pipeline(training.size, 1, crop_scale, flip=flip, jitter=0.0, grey=0.0)
    return Views([pipeline])


def extract(backbone: nn.Module, loader: Loader) -> tuple[Tensor, Tensor]:
    """Return features ``(N, d)`` and labels of all clean images that can be read, on the CPU."""
    features = []
    labels = []
    for x, y in loader:
        features.append(represent(backbone, x).cpu())
        labels.append(y.cpu())
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
    """Return the features ``(n, d)`` of images, computed in chunks that fit into memory.

    Those of tokens or maps are their means.
    """
    features = []
    for chunk in torch.split(x, CHUNK):
        output = backbone(chunk)
        features.append(rows(output, "the encoder").float())
    return torch.cat(features)
