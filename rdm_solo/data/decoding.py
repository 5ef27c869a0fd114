"""Decode, crop and resize image files.

Files are read as torchvision's default loader reads them: alpha is dropped, and the orientation
in EXIF is ignored. The only difference: 16-bit images are scaled to 8 bits instead of clipped.
"""

import io
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torchvision.io import ImageReadMode, decode_jpeg  # type: ignore[import-untyped]

from rdm_solo.data.images import SIDES
from rdm_solo.ground.errors import UserError, printable
from rdm_solo.ground.values import check_bool, check_choice, check_integer

# Detected by content, not by name. Pillow's other formats are refused, since EPS runs Ghostscript.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "PPM", "GIF")

# With ``reduce_jpegs`` a JPEG is decoded at 1/2, 1/4 or 1/8 of its size if each side of every crop
# is then still at least this many times as long as its view's side.
OVERSAMPLING = 2.0


@dataclass(frozen=True)
class DecodeOptions:
    """Options for decoding image files."""

    image_size: int = 224  #: side of a clean image (validation, kNN) in pixels
    resize: int | None = None  #: shorter side before the centre crop; None: 8/7 of image_size
    channels: int = 3  #: 3 reads everything as RGB, 1 as grey
    interpolation: str = "bilinear"  #: ``bilinear`` or ``bicubic``, with antialiasing
    workers: int | None = None  #: decoding processes; 0: none; None: one per core, at most 16
    skip_broken: bool = False  #: replace an unreadable image with the next readable one
    reduce_jpegs: bool = False  #: decode JPEGs much larger than their views at a reduced size

    def __post_init__(self) -> None:
        check_bool("dataset.skip_broken", self.skip_broken)
        check_bool("dataset.reduce_jpegs", self.reduce_jpegs)
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


def decode(image: Image.Image, channels: int = 3, reduce: int = 1) -> Tensor:
    """Return the pixels of an opened image, uint8 of shape ``(channels, H, W)``.

    A JPEG can be decoded at 1/``reduce`` of its size (2, 4 or 8), which is faster.

    >>> decode(Image.new("RGBA", (5, 4), (255, 0, 0, 0)))[:, 0, 0]
    tensor([255,   0,   0], dtype=torch.uint8)
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about metadata
        if channels == 3 and reduce == 1 and image.format == "JPEG" and image.mode == "RGB":
            x = _decode_rgb_jpeg(image)
            if x is not None:
                return x
        pixels = _pixels(image, "RGB" if channels == 3 else "L", reduce)
    # A channels-last layout, which torch resizes several times faster.
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], -1)).permute(2, 0, 1)


def _decode_rgb_jpeg(image: Image.Image) -> Tensor | None:
    """Decode with torchvision, which is faster; return None if Pillow has to decode the file.

    Both call libjpeg. Pillow's errors name what is wrong with a file, and Pillow also works if
    torchvision was built without decoders.
    """
    file = getattr(image, "fp", None)  # None once Pillow has decoded the image
    if not isinstance(file, io.BytesIO):
        return None
    content = torch.frombuffer(file.getbuffer(), dtype=torch.uint8)
    try:
        x: Tensor = decode_jpeg(content, ImageReadMode.RGB)
    except (RuntimeError, AttributeError):
        return None
    if x.shape != (3, image.height, image.width):
        return None
    return x


def _pixels(image: Image.Image, mode: str, reduce: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    if reduce > 1:
        image.draft(image.mode, (image.width // reduce, image.height // reduce))
    if image.mode == "F":
        raise UserError("has floating-point pixels, which are not supported")
    if image.mode.startswith("I"):  # 16 bits; Pillow would clip values above 255
        scaled = np.asarray(image) // 257
        image = Image.fromarray(scaled.clip(0, 255).astype(np.uint8))
    return np.array(image.convert(mode))


def resize_box(x: Tensor, box: Sequence[int], size: tuple[int, int], mode: str) -> Tensor:
    """Crop ``box`` (top, left, height, width) from bytes ``(C, H, W)`` and resize, antialiased."""
    top, left, height, width = box
    cut = x[None, :, top : top + height, left : left + width]
    if (height, width) == size:
        return cut[0]
    return F.interpolate(cut, size, mode=mode, antialias=True, align_corners=False)[0]


def evaluation_image(image: Image.Image, options: DecodeOptions) -> Tensor:
    """Return the image for evaluation: resize the shorter side, then crop the central square."""
    x = decode(image, options.channels)
    height, width = x.shape[1:]
    shorter = options.resize or round(options.image_size * 8 / 7)
    scaled_height = int(shorter * height / min(height, width))
    scaled_width = int(shorter * width / min(height, width))
    everything = (0, 0, height, width)
    x = resize_box(x, everything, (scaled_height, scaled_width), options.interpolation)
    top = round((scaled_height - options.image_size) / 2)
    left = round((scaled_width - options.image_size) / 2)
    return x[:, top : top + options.image_size, left : left + options.image_size]


def cut_views(
    image: Image.Image, boxes: Tensor, sizes: Sequence[int], options: DecodeOptions
) -> list[Tensor]:
    """Return a resized crop for each view; ``boxes`` (``(V, 4)``) refer to the full-size image."""
    full_size = torch.tensor([image.height, image.width], dtype=torch.float64)
    reduce = 1
    if options.reduce_jpegs and image.format == "JPEG":
        shorter_sides = boxes[:, 2:].amin(1)
        scale = (shorter_sides / torch.tensor(sizes)).min()
        for factor in (2, 4, 8):
            if scale >= factor * OVERSAMPLING:
                reduce = factor
    x = decode(image, options.channels, reduce)
    if reduce > 1:
        scale = torch.tensor(x.shape[1:]) / full_size
        start = (boxes[:, :2] * scale).round().long()
        end = ((boxes[:, :2] + boxes[:, 2:]) * scale).round().long()
        boxes = torch.cat((start, end - start), 1)
    views = []
    for box, size in zip(boxes.tolist(), sizes):
        views.append(resize_box(x, box, (size, size), options.interpolation))
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
