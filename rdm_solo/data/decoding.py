"""Pixels of image files, and crops of them.

Files are read as torchvision's default loader reads them: alpha is dropped, and the orientation
in EXIF is ignored. 16-bit images are the exception: they are scaled down instead of clipped.
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
from rdm_solo.messages import UserError, check_choice, check_switch, check_whole, printable

# The content decides which format a file has, not its name. Pillow reads 40 more formats, one of
# which (EPS) starts Ghostscript.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "PPM", "GIF")

# A large JPEG is decoded at half, a quarter or an eighth of its size if the sides of every crop
# still have this many pixels for each pixel of its view.
OVERSAMPLING = 2.0


@dataclass(frozen=True)
class Reading:
    """Options for turning files into pixels."""

    image_size: int = 224  #: side of a clean image (validation, kNN) in pixels
    resize: int | None = None  #: its shorter side before the central crop; None: 8/7 of image_size
    channels: int = 3  #: 3 reads everything as RGB, 1 as grey
    interpolation: str = "bilinear"  #: or ``bicubic``, both antialiased
    workers: int | None = None  #: decoding processes; 0: none; None: one per core, at most 16
    skip_broken: bool = False  #: replace an unreadable image by the next readable one

    def __post_init__(self) -> None:
        check_switch("dataset.skip_broken", self.skip_broken)
        check_whole("dataset.image_size", self.image_size, *SIDES)
        if self.resize is not None:
            most = 2 * SIDES[1]
            check_whole("dataset.resize", self.resize, self.image_size, most, alternative="null")
        if self.workers is not None:
            check_whole("dataset.workers", self.workers, 0, 256, alternative="null")
        if self.channels not in (1, 3):
            raise UserError(f"dataset.channels must be 3 or 1, got {self.channels!r}.")
        check_choice("dataset.interpolation", self.interpolation, ("bilinear", "bicubic"))


def open_image(path: str | os.PathLike[str]) -> Image.Image:
    """Return the image in a file, with its header read and its pixels not yet decoded.

    Pillow refuses images of more than 179 million pixels.
    """
    with open(path, "rb") as file:
        content = file.read()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about metadata, and about fewer pixels
        return Image.open(io.BytesIO(content), formats=FORMATS)


def decode(image: Image.Image, channels: int = 3, reduce: int = 1) -> Tensor:
    """Return the pixels of an opened image, uint8 of shape ``(channels, H, W)``.

    ``reduce`` (2, 4 or 8) lets a JPEG be decoded at a fraction of its size, in its own DCT.

    >>> decode(Image.new("RGBA", (5, 4), (255, 0, 0, 0)))[:, 0, 0]
    tensor([255,   0,   0], dtype=torch.uint8)
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about metadata
        if channels == 3 and reduce == 1 and image.format == "JPEG" and image.mode == "RGB":
            x = _plain_jpeg(image)
            if x is not None:
                return x
        pixels = _pixels(image, "RGB" if channels == 3 else "L", reduce)
    # Rows of RGB triples: torch resizes this layout several times faster than separate planes.
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], -1)).permute(2, 0, 1)


def _plain_jpeg(image: Image.Image) -> Tensor | None:
    """Return the pixels by torchvision's decoder, which is faster; None leaves them to Pillow.

    Both call libjpeg. Pillow explains what is wrong with a file, and is there when torchvision was
    built without decoders.
    """
    content = getattr(getattr(image, "fp", None), "getbuffer", bytes)()
    if not content:
        return None
    try:
        x: Tensor = decode_jpeg(torch.frombuffer(content, dtype=torch.uint8), ImageReadMode.RGB)
    except (RuntimeError, AttributeError):
        return None
    return x if x.shape == (3, image.height, image.width) else None


def _pixels(image: Image.Image, mode: str, reduce: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    if reduce > 1:
        image.draft(image.mode, (image.width // reduce, image.height // reduce))
    if image.mode == "F":
        raise UserError("has floating-point pixels, which are not supported")
    if image.mode.startswith("I"):  # 16 bits; Pillow would clip what is above 255
        image = Image.fromarray(np.clip(np.asarray(image) // 257, 0, 255).astype(np.uint8))
    elif image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return np.array(image if image.mode == mode else image.convert(mode))


def resize_box(x: Tensor, box: Sequence[int], size: tuple[int, int], mode: str) -> Tensor:
    """Cut ``box`` (top, left, height, width) out of bytes ``(C, H, W)`` and resize, antialiased."""
    top, left, height, width = box
    cut = x[None, :, top : top + height, left : left + width]
    if (height, width) == size:
        return cut[0]
    return F.interpolate(cut, size, mode=mode, antialias=True, align_corners=False)[0]


def clean(image: Image.Image, reading: Reading) -> Tensor:
    """Return the image for evaluation: shorter side resized, central square cut out."""
    x = decode(image, reading.channels)
    height, width = x.shape[1:]
    short, side = min(height, width), reading.resize or round(reading.image_size * 8 / 7)
    size = (int(side * height / short), int(side * width / short))
    x = resize_box(x, (0, 0, height, width), size, reading.interpolation)
    top, left = (round((s - reading.image_size) / 2) for s in size)
    return x[:, top : top + reading.image_size, left : left + reading.image_size]


def cut_views(
    image: Image.Image, boxes: Tensor, sizes: Sequence[int], reading: Reading
) -> list[Tensor]:
    """Return a crop for each view; ``boxes`` (``(V, 4)``) are in the image's own pixels."""
    height, width = image.height, image.width
    finest = min(min(box[2:]) / size for box, size in zip(boxes.tolist(), sizes))
    fraction = next((r for r in (8, 4, 2) if finest >= r * OVERSAMPLING), 1)
    x = decode(image, reading.channels, fraction if image.format == "JPEG" else 1)
    if x.shape[1:] != (height, width):
        shrink = torch.tensor([x.shape[1] / height, x.shape[2] / width], dtype=torch.float64)
        start = (boxes[:, :2] * shrink).round().long()
        end = ((boxes[:, :2] + boxes[:, 2:]) * shrink).round().long()
        boxes = torch.cat((start, end - start), 1)
    return [
        resize_box(x, box, (size, size), reading.interpolation)
        for box, size in zip(boxes.tolist(), sizes)
    ]


def explain(error: Exception) -> str:
    """Return the clause that says why an image cannot be read; its name comes before it.

    >>> explain(FileNotFoundError(2, "No such file or directory", "x.jpg"))
    'cannot be read (FileNotFoundError: No such file or directory)'
    """
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, UnidentifiedImageError):  # whose text has an address in memory
        return "is not an image"
    reason = getattr(error, "strerror", None) or error
    return f"cannot be read ({type(error).__name__}: {printable(reason)})"
