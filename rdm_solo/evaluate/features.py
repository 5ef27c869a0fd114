"""A frozen backbone's features of a data set: of plain images, or freshly augmented ones."""

from __future__ import annotations

from typing import Any

import hydra.utils
import torch
from omegaconf import DictConfig
from torch import Tensor, nn

from rdm_solo.data.images import Dataset
from rdm_solo.data.loaders import Loader, loader
from rdm_solo.data.views import Pipeline, Views

__all__ = ["PIECE", "Loaders", "channels", "extract", "represent"]

PIECE = 512  # images in one pass through the backbone


class Loaders:
    """The images of an evaluation: augmented ones to train on, plain ones of both parts."""

    def __init__(
        self, dataset: Dataset, cfg: DictConfig, device: torch.device, channels: int
    ) -> None:
        self.dataset, self.device, self.seed = dataset, device, cfg.seed
        self.channels = channels
        own = hydra.utils.instantiate(cfg.dataset.views).pipelines[0]
        self.size = own.size
        crop_scale, flip = cfg.augmentation.crop_scale, cfg.augmentation.flip
        if crop_scale is None:
            crop_scale = own.crop_scale if own.crop_scale[0] > 0.5 else (0.08, 1.0)
        self.augmentation = {
            "crop_scale": list(crop_scale),
            "flip": own.flip if flip is None else flip,
        }

    @property
    def views(self) -> Views:
        """One view: crop, resize, flip; nothing else."""
        options: dict[str, Any] = {"jitter": 0.0, "grey": 0.0, "blur": 0.0, "solarize": 0.0}
        options |= self.augmentation
        return Views([Pipeline(size=self.size, num_crops=1, **options)])

    def augmented(self, batch_size: int) -> Loader:
        return self._loader("train", batch_size, views=self.views, drop_last=False)

    def plain(self, part: str) -> Loader:
        return self._loader(part, PIECE)

    def _loader(self, part: str, batch_size: int, **options: Any) -> Loader:
        return loader(
            self.dataset,
            part,
            batch_size,
            seed=self.seed,
            device=self.device,
            expand_channels=self.channels,
            **options,
        )


def extract(backbone: nn.Module, loader: Loader) -> tuple[Tensor, Tensor]:
    """Features ``(N, d)`` and labels of plain images, in order.

    They stay on the device where they fit into half of its free memory.
    """
    features = labels = None
    row = 0
    for x, y in loader:
        out = represent(backbone, x)
        if features is None or labels is None:
            n = len(loader.images)
            home = out.device
            if home.type == "cuda":
                free = torch.cuda.mem_get_info(home)[0]
                home = home if n * out.shape[1] * 4 < free / 2 else torch.device("cpu")
            features = torch.empty(n, out.shape[1], device=home)
            labels = torch.empty(n, dtype=torch.int64, device=home)
        features[row : row + len(out)], labels[row : row + len(out)] = out, y
        row += len(out)
    assert features is not None
    assert labels is not None
    return features[:row], labels[:row]


def represent(backbone: nn.Module, x: Tensor) -> Tensor:
    """The features ``(n, d)`` of images, in pieces of a size that fits, without a gradient."""
    with torch.no_grad():
        pieces = [x[low : low + PIECE] for low in range(0, len(x), PIECE)]
        return torch.cat([backbone(piece).float() for piece in pieces])


def channels(backbone: nn.Module) -> int:
    """The channels that a backbone takes.

    >>> channels(nn.Sequential(nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3)))
    1
    """
    return next(m.in_channels for m in backbone.modules() if isinstance(m, nn.Conv2d))
