"""Images from files: decoded and cropped by worker processes, augmented in batches on the device.

A worker reads an image once, cuts all its views out (antialiased, as bytes) and hands them over;
flip, jitter, grey, blur and solarisation follow on the device that trains. Files are read as
torchvision's default loader reads them: alpha is dropped, the orientation that a camera notes in
EXIF is ignored. Only 16-bit images are treated otherwise, scaled down instead of clipped to white.
"""

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset as MapDataset
from torchvision.io import ImageReadMode, decode_jpeg  # type: ignore[import-untyped]

from rdm_solo.data.image_files import Unreadable, image_in
from rdm_solo.data.images import Files, Reading
from rdm_solo.data.views import Views
from rdm_solo.messages import UserError, printable

# An image and its neighbours that are tried, one after the other, until one is readable.
TRIES = 100

# A large JPEG is decoded at half, a quarter or an eighth of its size where the sides of every crop
# still have this many pixels for each pixel of its view.
OVERSAMPLING = 2.0

# An image whose sides differ by more than this factor is evaluated by its middle.
LONGEST = 8

# An epoch, and the numbers of the images of one batch.
Task = tuple[int, list[int]]


class Decoded(NamedTuple):
    """A decoded batch: numbers of the images, a tensor of crops for each view, and their draws.

    ``broken`` says by path why an image was skipped.
    """

    samples: Tensor
    crops: list[Tensor]
    uniforms: list[Tensor]
    broken: dict[str, str]


def decode(image: Image.Image, channels: int = 3, reduce: int = 1) -> Tensor:
    """The pixels of an opened image, uint8 of shape ``(channels, H, W)``.

    ``reduce`` (2, 4 or 8) lets a JPEG be decoded at a fraction of its size, in its own DCT.

    >>> decode(Image.new("RGBA", (5, 4), (255, 0, 0, 0)))[:, 0, 0]
    tensor([255,   0,   0], dtype=torch.uint8)
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of metadata
            if channels == 3 and reduce == 1 and image.format == "JPEG" and image.mode == "RGB":
                x = _plain_jpeg(image)
                if x is not None:
                    return x
            pixels = _pixels(image, "RGB" if channels == 3 else "L", reduce)
    except Exception as error:
        raise Unreadable(
            f"cannot be decoded ({type(error).__name__}: {printable(error)})"
        ) from error
    # Rows of RGB triples: torch resizes this layout several times faster than separate planes.
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], -1)).permute(2, 0, 1)


def _plain_jpeg(image: Image.Image) -> Tensor | None:
    """The pixels by torchvision's decoder, which writes RGB triples at once: Pillow copies thrice.

    Both call libjpeg. What torchvision refuses is left to Pillow, which says why, and so is
    everything where torchvision was built without its decoders.
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
        raise UserError("floating-point pixels are not supported")
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
    """The image as it is evaluated: shorter side resized, central square cut out."""
    x = _middle(decode(image, reading.channels))
    height, width = x.shape[1:]
    short, side = min(height, width), reading.resize or round(reading.image_size * 8 / 7)
    size = (int(side * height / short), int(side * width / short))
    x = resize_box(x, (0, 0, height, width), size, reading.interpolation)
    top, left = (round((s - reading.image_size) / 2) for s in size)
    return x[:, top : top + reading.image_size, left : left + reading.image_size]


def _middle(x: Tensor) -> Tensor:
    """What a central square is cut out of: a line of 1 x 10,000 pixels resized is gigabytes."""
    for dim in (1, 2):
        most = LONGEST * min(x.shape[1:])
        if x.shape[dim] > most:
            x = x.narrow(dim, (x.shape[dim] - most) // 2, most)
    return x


def cut_views(
    image: Image.Image, boxes: Tensor, sizes: Sequence[int], reading: Reading
) -> list[Tensor]:
    """A crop for each view; ``boxes`` (``(V, 4)``) are in the image's own pixels."""
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


class Decoder(MapDataset[Decoded]):
    """The map-style data set of the workers: a task in, its decoded and cropped images out.

    What cannot be read is returned as ``broken`` and not raised, since a DataLoader would put a
    worker's traceback into the sentence.
    """

    def __init__(self, files: Files, views: Views | None, seed: int) -> None:
        self.files, self.views, self.seed = files, views, seed

    def __getitem__(self, task: Task) -> Decoded:
        epoch, wanted = task
        skip = self.files.reading.skip_broken
        tries = min(TRIES, len(self.files)) if skip and self.views else 1
        tables = self.views.uniforms(wanted, self.seed, epoch) if self.views else []
        broken: dict[str, str] = {}
        shown: list[tuple[int, int, list[Tensor]]] = []
        for slot, first in enumerate(wanted):
            draws = [table[slot : slot + 1] for table in tables]
            for sample in range(first, first + tries):
                crops = self._cut(sample % len(self.files), draws, broken)
                if crops:
                    shown.append((slot, sample % len(self.files), crops))
                    break
            if broken and not skip:
                break
        if not shown:
            return Decoded(torch.tensor([], dtype=torch.int64), [], [], broken)
        slots, samples, images = zip(*shown)
        crops = [torch.stack(view) for view in zip(*images)]
        return Decoded(torch.tensor(samples), crops, [u[list(slots)] for u in tables], broken)

    def _cut(self, sample: int, draws: list[Tensor], broken: dict[str, str]) -> list[Tensor]:
        """The crops of an image; none, and an entry in ``broken``, where it cannot be read."""
        path = self.files.path(sample)
        if str(path) in broken:
            return []
        try:
            image = image_in(self.files.content(sample))
            if self.views is None:
                return [clean(image, self.files.reading)]
            boxes = self.views.boxes(draws, image.height, image.width)
            sizes = [view.size for view in self.views.each]
            return cut_views(image, boxes, sizes, self.files.reading)
        except Unreadable as error:
            broken[str(path)] = str(error)
            return []
