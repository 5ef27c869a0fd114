"""Decode, crop and resize image files, with torchvision's functions.

Files are read as torchvision's default loader reads them: alpha is dropped, and the orientation
in EXIF is ignored. The only difference: 16-bit images are scaled to 8 bits instead of clipped.
"""

import io
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torchvision.transforms import InterpolationMode  # type: ignore[import-untyped]
from torchvision.transforms.v2 import functional as tv  # type: ignore[import-untyped]

from rdm_solo.data.images import SIDES
from rdm_solo.ground.errors import UserError, printable
from rdm_solo.ground.values import check_bool, check_choice, check_integer

# Detected by content, not by name. Pillow's other formats are refused, since EPS runs Ghostscript.
FORMATS = (
    "JPEG",
    "PNG",
    "WEBP",
    "BMP",
    "TIFF",
    "PPM",
    "GIF",
)


@dataclass(frozen=True)
class DecodeOptions:
    """Options for decoding image files."""

    image_size: int = 224  #: side of a clean image (validation, kNN) in pixels
    resize: int | None = None  #: shorter side before the centre crop; None: 8/7 of image_size
    channels: int = 3  #: 3 reads everything as RGB, 1 as grey
    interpolation: str = "bilinear"  #: ``bilinear`` or ``bicubic``, with antialiasing
    workers: int | None = None  #: decoding processes; 0: none; None: one per core, at most 16
    skip_broken: bool = False  #: replace an unreadable image with the next readable one

    def __post_init__(self) -> None:
        check_bool("dataset.skip_broken", self.skip_broken)
        check_integer("dataset.image_size", self.image_size, *SIDES)
        if self.resize is not None:
            most = 2 * SIDES[1]
            check_integer("dataset.resize", self.resize, self.image_size, most, alternative="null")
        if self.workers is not None:
            check_integer("dataset.workers", self.workers, 0, 256, alternative="null")
        if self.channels not in (1, 3):
            raise UserError(f"dataset.channels must be 3 or 1, got {self.channels!r}.")
        check_choice("dataset.interpolation", self.interpolation, ("bilinear", "bicubic"))


def open_image(path: str | os.PathLike[str]) -> Image.Image:
    """Open an image file: read its header, but do not decode its pixels.

    Pillow refuses images of more than 179 million pixels.
    """
    with open(path, "rb") as file:
        content = file.read()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about metadata, and about large images below the limit
        return Image.open(io.BytesIO(content), formats=FORMATS)


def decode(image: Image.Image, channels: int = 3) -> Tensor:
    """Return the pixels of an opened image, uint8 of shape ``(channels, H, W)``.

    >>> decode(Image.new("RGBA", (5, 4), (255, 0, 0, 0)))[:, 0, 0]
    tensor([255,   0,   0], dtype=torch.uint8)
    """
    if image.mode == "F":
        raise UserError("has floating-point pixels, which are not supported")
    if image.mode.startswith("I"):  # 16 bits; Pillow would clip values above 255
        scaled = np.asarray(image) // 257
        scaled = scaled.clip(0, 255).astype(np.uint8)
        image = Image.fromarray(scaled)
    mode = "RGB" if channels == 3 else "L"
    pixels: Tensor = tv.pil_to_tensor(image.convert(mode))
    return pixels


def evaluation_image(image: Image.Image, options: DecodeOptions) -> Tensor:
    """Return the image for evaluation: resize the shorter side, then crop the central square."""
    x = decode(image, options.channels)
    shorter_side = options.resize or round(options.image_size * 8 / 7)
    interpolation = InterpolationMode(options.interpolation)
    x = tv.resize(x, [shorter_side], interpolation)
    central: Tensor = tv.center_crop(x, [options.image_size])
    return central


def cut_views(
    image: Image.Image,
    boxes: Tensor,
    sizes: Sequence[int],
    options: DecodeOptions,
) -> list[Tensor]:
    """Return a resized crop for each view; ``boxes`` are ``(V, 4)``."""
    x = decode(image, options.channels)
    interpolation = InterpolationMode(options.interpolation)
    views = []
    for box, size in zip(boxes.tolist(), sizes):
        views.append(tv.resized_crop(x, *box, [size, size], interpolation))
    return views


def explain(error: Exception) -> str:
    """Return why an image cannot be read, as the end of a sentence that starts with its name.

    >>> explain(FileNotFoundError(2, "No such file or directory", "x.jpg"))
    'cannot be read (FileNotFoundError: No such file or directory)'
    """
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, UnidentifiedImageError):  # its text contains a memory address
        return "is not an image"
    reason = getattr(error, "strerror", None) or error
    return f"cannot be read ({type(error).__name__}: {printable(reason)})"
