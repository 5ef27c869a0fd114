"""Two data sets made for the study: pictures of blobs, and rows of numbers."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rdm_solo.data.draws import generator
from rdm_solo.data.images import Dataset, Images
from rdm_solo.lightning import pl

CLASSES, TRAIN, VAL = 10, 1440, 360
SIDE = 8  # of a blob's picture, in pixels
SHARED, ALONE = 24, 40  # columns of a row that carry its class together, and that carry noise
CORRUPTED, NOISE = 0.4, 0.1  # share of the columns that a view takes from other rows; its noise


def blobs() -> Dataset:
    """Return pictures of ten blobs, turned, scaled and moved before a changing background."""
    coarse = torch.randn(CLASSES, 1, 5, 5, generator=generator(0, "blobs"))
    smooth = F.interpolate(coarse, size=(SIDE, SIDE), mode="bicubic", align_corners=True)
    masks = (smooth > 0).float()

    def part(name: str, n: int) -> Images:
        draw = generator(0, "blobs", name)
        labels = _labels(n, draw)

        def uniform(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=draw)

        angle, scale = 0.6 * (uniform(n) - 0.5), 0.9 + 0.3 * uniform(n)
        cos, sin = angle.cos() * scale, angle.sin() * scale
        moved = 0.35 * (uniform(n, 2) - 0.5)
        rows = torch.stack([cos, -sin, moved[:, 0]], 1), torch.stack([sin, cos, moved[:, 1]], 1)
        grid = F.affine_grid(torch.stack(rows, 1), [n, 1, SIDE, SIDE], align_corners=False)
        shape = F.grid_sample(masks[labels], grid, align_corners=False)
        hills = torch.randn(n, 1, 3, 3, generator=draw)
        background = F.interpolate(hills, size=(SIDE, SIDE), mode="bilinear", align_corners=True)
        x = 0.35 + 0.15 * background + (0.25 + 0.25 * uniform(n, 1, 1, 1)) * shape
        x += 0.04 * torch.randn(x.shape, generator=draw)
        return Images((255 * x.clamp(0, 1)).round().to(torch.uint8), labels)

    train, val = part("train", TRAIN), part("val", VAL)
    pixels = train.images.float() / 255
    return Dataset("blobs", train, val, CLASSES, [float(pixels.mean())], [float(pixels.std())])


def _labels(n: int, draw: torch.Generator) -> Tensor:
    return (torch.arange(n) % CLASSES)[torch.randperm(n, generator=draw)]


def rows(part: str, n: int) -> tuple[Tensor, Tensor]:
    """Return rows of numbers and their classes.

    24 columns mix six hidden numbers, which lie around a centre for each class. 40 more columns are
    noise with larger values. A view with some columns from other rows keeps what columns share.
    """
    fixed = generator(0, "rows")
    mix = torch.randn(6, SHARED, generator=fixed) / 6**0.5
    centres = torch.randn(CLASSES, 6, generator=fixed)
    draw = generator(0, "rows", part)
    labels = _labels(n, draw)
    hidden = centres[labels] + 0.45 * torch.randn(n, 6, generator=draw)
    mixed = hidden @ mix + 0.3 * torch.randn(n, SHARED, generator=draw)
    return torch.cat([mixed, 1.5 * torch.randn(n, ALONE, generator=draw)], 1), labels


def perceptron(width: int) -> nn.Module:
    """Return a backbone for rows: three layers with batch norm, ``width`` features."""
    sizes = SHARED + ALONE, 256, 256, width
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), nn.BatchNorm1d(fan_out), nn.ReLU()]
    return nn.Sequential(*layers)


class RowLoader:
    """Batches of rows: shuffled, with two views of each, or without a seed as they are."""

    batch_sampler = None  # Lightning reads it

    def __init__(self, part: tuple[Tensor, Tensor], batch_size: int, seed: int | None) -> None:
        self.rows, self.labels = part
        self.batch_size, self.seed, self.epoch = batch_size, seed, 0

    @property
    def sampler(self) -> "RowLoader":
        return self

    @property
    def dataset(self) -> Tensor:
        return self.rows

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        full, rest = divmod(len(self.rows), self.batch_size)
        return full + bool(rest and self.seed is None)

    def __iter__(self) -> Iterator[Any]:
        if self.seed is None:
            for chosen in torch.arange(len(self.rows)).chunk(len(self)):
                yield self.rows[chosen], self.labels[chosen]
            return
        draw = generator(self.seed, self.epoch, "views")
        order = torch.randperm(len(self.rows), generator=draw)
        for step in range(len(self)):
            chosen = order[step * self.batch_size : (step + 1) * self.batch_size]
            views = [self._view(self.rows[chosen], draw) for _ in range(2)]
            yield chosen, views, self.labels[chosen]

    def _view(self, x: Tensor, draw: torch.Generator) -> Tensor:
        others = torch.randint(len(self.rows), x.shape, generator=draw)
        corrupted = torch.rand(x.shape, generator=draw) < CORRUPTED
        x = self.rows.gather(0, others).where(corrupted, x)
        return x + NOISE * torch.randn(x.shape, generator=draw)


class RowData(pl.LightningDataModule):  # type: ignore[misc]
    """The rows as a run's data; training repeats the first ``distinct`` rows."""

    def __init__(self, batch_size: int, seed: int, distinct: int) -> None:
        super().__init__()
        self.batch_size, self.seed = batch_size, seed
        x, y = rows("train", TRAIN)
        repeated = torch.arange(TRAIN) % distinct
        self.train, self.val = (x[repeated], y[repeated]), rows("val", VAL)

    def train_dataloader(self) -> RowLoader:
        return RowLoader(self.train, self.batch_size, self.seed)

    def val_dataloader(self) -> RowLoader:
        return RowLoader(self.val, VAL, None)

    def memory_dataloader(self) -> RowLoader:
        return RowLoader(rows("train", TRAIN), TRAIN, None)
