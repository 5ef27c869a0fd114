"""Generated images of gratings, on which pretraining can beat raw pixels within a minute."""

import math

import torch
from torch import Tensor

from rdm_solo.data.draws import generator
from rdm_solo.data.images import Dataset
from rdm_solo.data.sources import generated, to_bytes
from rdm_solo.ground.values import check_choice, check_integer

CLASSES = 12
VARIANTS = ("textures", "angles")


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
    check_choice("dataset.variant", variant, VARIANTS)
    check_integer("dataset.image_size", size, 16)  # the fine grating has up to 7.2 periods
    angles, periods = class_gratings(variant)

    def draw(labels: Tensor, random: torch.Generator) -> Tensor:
        return _images(angles[labels], periods, size, random)

    return generated(variant, draw, num_train, num_val, CLASSES, seed, variant)


def class_gratings(variant: str) -> tuple[Tensor, Tensor]:
    """Return the angles of each class's gratings, ``(classes, j)``, and their periods per image."""
    if variant == "angles":
        angles = torch.zeros(CLASSES, 2)
        angles[:, 1] = math.pi / CLASSES * torch.arange(CLASSES)
        return angles, torch.tensor([2.5, 5.0])
    # The three digits of a class's code in base 4 are its orientations, in steps of 45 degrees.
    codes = torch.randperm(4**3, generator=generator("textures"))
    codes = codes[:CLASSES, None]
    place_values = torch.tensor([1, 4, 16])
    digits = codes // place_values % 4
    angles = digits * (math.pi / 4)
    return angles, torch.tensor([2.5, 4.5, 6.0])


def _images(angles: Tensor, periods: Tensor, size: int, random: torch.Generator) -> Tensor:
    """Return images ``(n, 1, size, size)`` of gratings; angles are ``(n, j)``, periods ``(j,)``."""
    n, gratings = angles.shape

    def uniform(low: float, high: float, count: int = 1) -> Tensor:
        u = torch.rand(n, count, 1, 1, generator=random)
        return low + (high - low) * u

    coordinates = torch.arange(size) / size - 0.5
    x = coordinates
    y = coordinates[:, None]
    angles = angles[..., None, None]
    angles = angles + uniform(-0.06, 0.06, gratings)
    periods = periods[:, None, None]
    periods = periods * uniform(0.8, 1.2, gratings)
    phases = uniform(0, 1, gratings)
    across = angles.cos() * x + angles.sin() * y
    turns = periods * across + phases
    waves = (2 * math.pi * turns).sin()
    amplitudes = uniform(0.5, 1.5, gratings) / gratings**0.5
    pattern = (amplitudes * waves).sum(1, keepdim=True)
    contrast = uniform(0.12, 0.22)
    brightness = uniform(-0.15, 0.15)
    slope_x = uniform(-0.3, 0.3)
    slope_y = uniform(-0.3, 0.3)
    images = 0.5 + contrast * pattern
    images += brightness + slope_x * x + slope_y * y
    noise = torch.randn(images.shape, generator=random)
    images += 0.08 * noise
    return to_bytes(images)
