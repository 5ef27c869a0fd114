"""Images from files: decoded and cropped by worker processes, augmented in batches on the device.

A worker reads an image once, cuts all its views out (antialiased, as bytes) and hands them over;
flip, jitter, grey, blur and solarisation follow on the device that trains. Files are read as
torchvision's default loader reads them: alpha is dropped, the orientation that a camera notes in
EXIF is ignored. Only 16-bit images are treated otherwise, scaled down instead of clipped to white.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import Dataset as MapDataset

from rdm_solo.data.images import Files, Reading
from rdm_solo.data.views import Views

__all__ = ["Decoded", "Decoder", "Task", "clean", "cut_views", "decode", "open_image", "resize_box"]

TRIES = 100  # neighbours that are tried in the place of an unreadable image, one after the other

# A large JPEG is decoded at half, a quarter or an eighth of its size where the sides of every crop
# still have this many pixels for each pixel of its view.
OVERSAMPLING = 2.0

AT_ONCE = 16  # images whose crops are drawn together

# An epoch, and the numbers of the images of one batch.
Task = tuple[int, list[int]]


class Decoded(NamedTuple):
    """A decoded batch. ``slots`` are the places in the task that ``samples`` stand at.

    ``crops`` has a tensor for each view, ``broken`` the path of each unreadable image and why.
    """

    samples: list[int]
    slots: list[int]
    crops: list[Tensor]
    broken: list[tuple[str, str]]


class Unreadable(Exception):
    """An image that cannot be decoded, and why."""


def open_image(content: bytes) -> Image.Image:
    """The image in a file's bytes, its header read and its pixels not yet.

    Whatever a decoder raises on garbage (OSError, SyntaxError, struct.error, ...) is Unreadable.
    """
    try:
        return Image.open(io.BytesIO(content))
    except UnidentifiedImageError as error:
        raise Unreadable("is no image" if content else "is empty") from error
    except Exception as error:
        raise Unreadable(f"cannot be opened ({type(error).__name__}: {error})") from error


def decode(image: Image.Image, channels: int = 3, reduce: int = 1) -> Tensor:
    """The pixels of an opened image, uint8 of shape ``(channels, H, W)``.

    ``reduce`` (2, 4 or 8) lets a JPEG be decoded at a fraction of its size, in its own DCT.

    >>> decode(Image.new("RGBA", (5, 4), (255, 0, 0, 0)))[:, 0, 0]
    tensor([255,   0,   0], dtype=torch.uint8)
    """
    mode = "RGB" if channels == 3 else "L"
    try:
        if reduce > 1:
            image.draft(image.mode, (image.width // reduce, image.height // reduce))
        if image.mode == "F":
            raise ValueError("floating-point pixels have no agreed white")
        if image.mode.startswith("I"):  # 16 bits; Pillow would clip what is above 255
            wide = np.asarray(image).astype(np.int64)
            image = Image.fromarray(np.clip(wide // 257, 0, 255).astype(np.uint8))
        elif image.mode == "P" and "transparency" in image.info:
            image = image.convert("RGBA")
        pixels = np.array(image if image.mode == mode else image.convert(mode))
    except Exception as error:
        raise Unreadable(f"cannot be decoded ({type(error).__name__}: {error})") from error
    # Rows of RGB triples: torch resizes this layout several times faster than separate planes.
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], -1)).permute(2, 0, 1)


def resize_box(x: Tensor, box: Sequence[int], size: tuple[int, int], mode: str) -> Tensor:
    """Cut ``box`` (top, left, height, width) out of bytes ``(C, H, W)`` and resize, antialiased."""
    top, left, height, width = box
    cut = x[None, :, top : top + height, left : left + width]
    if (height, width) == size:
        return cut[0]
    return F.interpolate(cut, size, mode=mode, antialias=True, align_corners=False)[0]


def clean(image: Image.Image, reading: Reading) -> Tensor:
    """The image as it is evaluated: shorter side resized, central square cut out."""
    x = decode(image, reading.channels)
    height, width = x.shape[1:]
    short, side = min(height, width), reading.shorter_side
    size = (int(side * height / short), int(side * width / short))
    x = resize_box(x, (0, 0, height, width), size, reading.interpolation)
    top, left = (round((s - reading.size) / 2) for s in size)
    return x[:, top : top + reading.size, left : left + reading.size]


def cut_views(
    image: Image.Image, boxes: Sequence[Sequence[int]], sizes: Sequence[int], reading: Reading
) -> list[Tensor]:
    """A crop for each view; ``boxes`` are in the image's own pixels."""
    full_height, full_width = image.height, image.width
    finest = min(min(box[2:]) / size for box, size in zip(boxes, sizes))
    fraction = next((r for r in (8, 4, 2) if finest >= r * OVERSAMPLING), 1)
    x = decode(image, reading.channels, fraction if image.format == "JPEG" else 1)
    if x.shape[1:] != (full_height, full_width):
        boxes = [_scaled(box, full_height, full_width, *x.shape[1:]) for box in boxes]
    return [
        resize_box(x, box, (size, size), reading.interpolation) for box, size in zip(boxes, sizes)
    ]


def _scaled(
    box: Sequence[int], height: int, width: int, to_height: int, to_width: int
) -> list[int]:
    """A box of a large image in the pixels of its reduced version."""
    ends = (
        (box[0], box[0] + box[2], to_height / height),
        (box[1], box[1] + box[3], to_width / width),
    )
    (top, bottom), (left, right) = ((round(a * s), round(b * s)) for a, b, s in ends)
    return [top, left, bottom - top, right - left]


class Decoder(MapDataset[Decoded]):
    """The map-style data set of the workers: a task in, its decoded and cropped images out."""

    def __init__(self, files: Files, views: Views | None, seed: int) -> None:
        self.files, self.views, self.seed = files, views, seed

    def __getitem__(self, task: Task) -> Decoded:
        epoch, samples = task
        broken: dict[int, str] = {}
        shown: list[tuple[int, int, list[Tensor]]] = []
        for low in range(0, len(samples), AT_ONCE):
            wanted = samples[low : low + AT_ONCE]
            opened = [self._open(sample, broken) for sample in wanted]
            boxes = self._boxes(epoch, wanted, opened)
            for slot, (sample, image) in enumerate(zip(wanted, opened)):
                crops = self._cut(sample, image, boxes[slot], broken)
                if crops is None and self.views and self.files.reading.skip_broken:
                    sample, crops = self._neighbour(epoch, sample, broken)
                if crops is not None:
                    shown.append((sample, low + slot, crops))
        views = [torch.stack(view) for view in zip(*(crops for _, _, crops in shown))]
        found = [(str(self.files.path(sample)), why) for sample, why in broken.items()]
        return Decoded([s for s, _, _ in shown], [s for _, s, _ in shown], views, found)

    def _neighbour(
        self, epoch: int, sample: int, broken: dict[int, str]
    ) -> tuple[int, list[Tensor] | None]:
        """The next readable image after ``sample``, cut as the draws of ``sample`` say."""
        for step in range(1, min(TRIES, len(self.files))):
            other = (sample + step) % len(self.files)
            image = self._open(other, broken)
            crops = self._cut(other, image, self._boxes(epoch, [sample], [image])[0], broken)
            if crops is not None:
                return other, crops
        return sample, None

    def _open(self, sample: int, broken: dict[int, str]) -> Image.Image | None:
        if sample in broken:
            return None
        try:
            return open_image(self.files.path(sample).read_bytes())
        except Unreadable as error:
            broken[sample] = str(error)
        except OSError as error:
            broken[sample] = f"cannot be read ({error.strerror or error})"
        return None

    def _boxes(
        self, epoch: int, samples: list[int], images: Sequence[Image.Image | None]
    ) -> list[list[list[int]]]:
        """For each image a box for each view; one that could not be opened gets none that count."""
        if self.views is None:
            return [[] for _ in samples]
        height = torch.tensor([image.height if image else 1 for image in images])
        width = torch.tensor([image.width if image else 1 for image in images])
        rows = self.views.uniforms(samples, self.seed, epoch)
        boxes = [self.views.pipeline(v).boxes(u, height, width) for v, u in enumerate(rows)]
        return torch.stack(boxes, 1).tolist()

    def _cut(
        self,
        sample: int,
        image: Image.Image | None,
        boxes: list[list[int]],
        broken: dict[int, str],
    ) -> list[Tensor] | None:
        if image is None:
            return None
        try:
            if self.views is None:
                return [clean(image, self.files.reading)]
            sizes = [self.views.pipeline(v).size for v in range(self.views.num_crops)]
            return cut_views(image, boxes, sizes, self.files.reading)
        except Unreadable as error:
            broken[sample] = str(error)
            return None
