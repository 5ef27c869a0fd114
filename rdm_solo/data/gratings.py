"""Generated images of gratings, on which pretraining can beat raw pixels within a minute."""

import math

import torch
from torch import Tensor

from rdm_solo.data.draws import generator
from rdm_solo.data.images import Dataset, Images
from rdm_solo.data.sources import channel_moments
from rdm_solo.ground.errors import UserError
from rdm_solo.ground.values import check_integer

CLASSES = 12


def textures(
    variant: str = "textures",
    num_train: int = 960,
    num_val: int = 480,
    size: int = 16,
    seed: int = 0,
) -> Dataset:
    """Generate grey images of 12 classes from gratings.

    Phases, amplitudes, contrast, brightness, a gradient and noise are drawn for each image, so raw
    pixels carry little information about the class. With ``variant="textures"`` an image is the sum
    of a coarse, a middle and a fine grating, and the class sets each grating's orientation (one of
    four). Classes vary in six dimensions, the cosine and sine of each doubled angle, which favours
    outputs of high rank. With ``variant="angles"`` an image is the sum of two gratings. One of them
    turns by 15 degrees from class to class, so classes vary in two dimensions.

    >>> textures(num_train=24, num_val=12).train.images.shape
    torch.Size([24, 1, 16, 16])
    """
    if variant not in VARIANTS:
        raise UserError(f"dataset.variant must be {' or '.join(VARIANTS)}, got {variant!r}.")
    check_integer("dataset.image_size", size, 16)  # the fine grating has up to 7.2 periods
    angles, periods = VARIANTS[variant]()
    parts = []
    for part, n in (("train", num_train), ("val", num_val)):
        random = generator(seed, variant, part)
        labels = torch.randperm(n, generator=random) % CLASSES
        images = _images(angles[labels], periods[labels], size, random)
        parts.append(Images(images, labels))
    train, val = parts
    return Dataset(variant, train, val, CLASSES, *channel_moments(train.images))


def _textures() -> tuple[Tensor, Tensor]:
    """Return the angles of each class's gratings and their periods per image, ``(classes, 3)``."""
    # The three digits of a class's code in base 4 are its orientations, in steps of 45 degrees.
    codes = torch.randperm(4**3, generator=generator("textures"))[:CLASSES]
    place_values = torch.tensor([1, 4, 16])
    digits = codes[:, None] // place_values % 4
    periods = torch.tensor([2.5, 4.5, 6.0])
    return digits * (math.pi / 4), periods.expand(CLASSES, 3)


def _angles() -> tuple[Tensor, Tensor]:
    angles = torch.zeros(CLASSES, 2)
    angles[:, 1] = torch.arange(CLASSES) * (math.pi / CLASSES)
    periods = torch.tensor([2.5, 5.0])
    return angles, periods.expand(CLASSES, 2)


VARIANTS = {"textures": _textures, "angles": _angles}


def _images(angles: Tensor, periods: Tensor, size: int, random: torch.Generator) -> Tensor:
    """Return images ``(n, 1, size, size)`` of gratings with these angles and periods ``(n, j)``."""
    n, gratings = angles.shape

    def uniform(low: float, high: float, count: int) -> Tensor:
        return low + (high - low) * torch.rand(n, count, 1, 1, generator=random)

    coordinates = torch.arange(size) / size - 0.5
    y, x = torch.meshgrid(coordinates, coordinates, indexing="ij")
    angles = angles[..., None, None] + uniform(-0.06, 0.06, gratings)
    periods = periods[..., None, None] * uniform(0.8, 1.2, gratings)
    phases = uniform(0, 1, gratings)
    across = angles.cos() * x + angles.sin() * y
    waves = (2 * math.pi * (periods * across + phases)).sin()
    amplitudes = uniform(0.5, 1.5, gratings) / gratings**0.5
    pattern = (amplitudes * waves).sum(1, keepdim=True)
    contrast = uniform(0.12, 0.22, 1)
    images: Tensor = 0.5 + contrast * pattern
    brightness = uniform(-0.15, 0.15, 1)
    slope_x = uniform(-0.3, 0.3, 1)
    slope_y = uniform(-0.3, 0.3, 1)
    images += brightness + slope_x * x + slope_y * y
    images += 0.08 * torch.randn(images.shape, generator=random)
    return images.clamp(0, 1).mul(255).round().to(torch.uint8)
