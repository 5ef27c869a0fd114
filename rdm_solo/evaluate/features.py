"""A frozen backbone's features of a data set, and the augmentation of an evaluation."""

from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor, nn

from rdm_solo.data.loaders import Loader
from rdm_solo.data.views import Pipeline, Views
from rdm_solo.messages import UserError, check_choice

PIECE = 512  # images in one pass through the backbone


def choose_device(name: str) -> torch.device:
    """The device of that name; ``gpu`` is ``cuda``."""
    check_choice("device", name, ("auto", "cpu", "cuda", "gpu"))
    found = torch.cuda.is_available()
    if name in ("cuda", "gpu") and not found:
        raise UserError(
            f"device={name}, but this machine shows no GPU to torch {torch.__version__}; use cpu."
        )
    return torch.device("cuda" if found and name != "cpu" else "cpu")


def evaluation_views(views: Views, augmentation: DictConfig) -> Views:
    """One view of the run's own size: crop, resize, flip; nothing else."""
    own = views.pipelines[0]
    crop_scale, flip = augmentation.crop_scale, augmentation.flip
    if crop_scale is None:
        crop_scale = own.crop_scale if own.crop_scale[0] > 0.5 else (0.08, 1.0)
    options: dict[str, Any] = {"jitter": 0.0, "grey": 0.0, "blur": 0.0, "solarize": 0.0}
    options |= {"crop_scale": crop_scale, "flip": own.flip if flip is None else flip}
    return Views([Pipeline(size=own.size, num_crops=1, **options)])


def extract(backbone: nn.Module, loader: Loader) -> tuple[Tensor, Tensor]:
    """Features ``(N, d)`` and labels of clean images, in order; of those that can be read.

    They stay on the device where they fit into half of its free memory.
    """
    row = 0
    for x, y in loader:
        out = represent(backbone, x)
        if row == 0:
            n, home = len(loader.images), out.device
            if home.type == "cuda" and n * out.shape[1] * 4 > torch.cuda.mem_get_info(home)[0] / 2:
                home = torch.device("cpu")
            features = torch.empty(n, out.shape[1], device=home)
            labels = torch.empty(n, dtype=torch.int64, device=home)
        features[row : row + len(out)], labels[row : row + len(out)] = out, y
        row += len(out)
    loader.report_skipped()
    return features[:row], labels[:row]


@torch.no_grad()
def represent(backbone: nn.Module, x: Tensor) -> Tensor:
    """The features ``(n, d)`` of images, in pieces of a size that fits, without a gradient."""
    return torch.cat([backbone(piece).float() for piece in x.split(PIECE)])


def channels(backbone: nn.Module) -> int:
    """The channels that a backbone takes.

    >>> channels(nn.Sequential(nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3)))
    1
    """
    return next(m.in_channels for m in backbone.modules() if isinstance(m, nn.Conv2d))
