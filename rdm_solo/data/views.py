"""Augment batches, with independent random parameters for each sample.

A `Pipeline` maps ``n`` images and a ``(V, n, DRAWS)`` table of uniform numbers to ``V`` views of
each image. It is deterministic and works row by row: to rounding, a sample's view does not depend
on its other views, the rest of its batch, the batch size or the number of processes. Operations and
distributions are those of torchvision's ``RandomResizedCrop``, ``RandomHorizontalFlip``,
``ColorJitter``, ``RandomGrayscale``, ``GaussianBlur`` and ``RandomSolarize``, in this order. A
rotation follows the crop.

The table stays on the CPU, so choosing the samples for an operation does not wait for a GPU. TF32
and autocast change nothing: the only matrix products are in float64.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import torch
from torch import Tensor

from rdm_solo.data import draws
from rdm_solo.data.images import SIDES
from rdm_solo.data.operations import (
    apply_where,
    between,
    blur,
    color_jitter,
    crop_boxes,
    crop_resize,
    luma,
    rotate,
    solarize,
)
from rdm_solo.ground.errors import UserError
from rdm_solo.ground.values import check_integer, check_number

# Every order of the jitter's four operations, (24, 4).
ORDERS = torch.tensor(list(itertools.permutations(range(4))))

# A CPU augments this many values at a time, so that they fit its cache: at 224 pixels, chunks of 6
# images take two thirds of the time that 64 images at once take.
CHUNK_VALUES = 2**20


@dataclass(frozen=True)
class Pipeline:
    """A distribution of views, and the number of views that each sample gets from it.

    Calling it maps ``x`` (``(n, C, H, W)``, floats in [0, 1], any device) and ``u`` (``(V, n,
    DRAWS)`` uniforms on the CPU) to ``(V, n, C, size, size)``. All views are computed together, and
    view ``v`` of image ``i`` depends only on ``x[i]`` and ``u[v, i]``. Images that are not RGB skip
    saturation, hue and grey.

    >>> pipeline = Pipeline(size=16, crop_scale=(0.5, 1.0))
    >>> pipeline(torch.rand(4, 3, 32, 32), torch.rand(2, 4, draws.DRAWS)).shape
    torch.Size([2, 4, 3, 16, 16])
    """

    size: int  #: side of the (square) views in pixels
    num_crops: int = 2  #: views of this distribution per sample
    crop_scale: tuple[float, float] = (0.2, 1.0)  #: range of a crop's share of the area
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)  #: range of a crop's width / height
    flip: float = 0.5  #: probability of a horizontal flip
    jitter: float = 0.8  #: probability of the colour jitter, its four operations in random order
    brightness: float = 0.4  #: factors are uniform in [max(0, 1 - brightness), 1 + brightness]
    contrast: float = 0.4  #: likewise
    saturation: float = 0.4  #: likewise
    hue: float = 0.1  #: the shift is uniform in [-hue, hue], in turns; at most 0.5
    grey: float = 0.2  #: probability of a grey view
    blur: float = 0.0  #: probability of a Gaussian blur
    blur_sigma: tuple[float, float] = (0.1, 2.0)  #: range of the Gaussian's standard deviation
    solarize: float = 0.0  #: probability of solarisation
    rotate: float = 0.0  #: angles are uniform in [-rotate, rotate], in radians

    def __post_init__(self) -> None:
        check_integer("size (dataset.image_size)", self.size, *SIDES)
        check_integer("num_crops", self.num_crops, 1)
        shares = (
            "flip",
            "jitter",
            "grey",
            "blur",
            "solarize",
        )
        for name in shares:
            check_number(name, getattr(self, name), 0, 1)
        for name in ("brightness", "contrast", "saturation", "rotate"):
            check_number(name, getattr(self, name), 0)
        check_number("hue", self.hue, 0, 0.5)
        for name in ("crop_scale", "crop_ratio", "blur_sigma"):
            interval = getattr(self, name)
            if not isinstance(interval, Sequence) or len(interval) != 2:
                raise UserError(f"{name} must be two numbers, got {interval!r}.")
            low = check_number(name, interval[0], above=0)
            high = check_number(name, interval[1], low)
            object.__setattr__(self, name, (low, high))
        check_number("crop_scale", self.crop_scale[1], 0, 1)

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        return self._in_chunks(x, u, is_cropped=False)

    def finish(self, crops: Tensor, u: Tensor) -> Tensor:
        """Apply the operations after the crop: bytes ``(V, n, C, size, size)`` to floats in [0, 1].

        For image files, workers decode and crop with `boxes` and the same ``u``.
        """
        x = crops.float().div_(255)
        return self._in_chunks(x, u, is_cropped=True)

    def boxes(self, u: Tensor, height: int, width: int) -> Tensor:
        """Return the crop of each row of ``u``; see `crop_boxes`."""
        return crop_boxes(u, height, width, self.crop_scale, self.crop_ratio)

    def pixels(self, height: int, width: int) -> int:
        """Return how many pixels the views of one image have; a small view counts as the image."""
        return self.num_crops * max(height * width, self.size**2)

    def parameters(self, u: Tensor) -> SimpleNamespace:
        """Return the parameters of the operations after the crop, a row for each row of ``u``."""
        u = u.double()
        # Factors are around 1 and not negative. The shift of the hue is around 0.
        strengths = [
            self.brightness,
            self.contrast,
            self.saturation,
            self.hue,
        ]
        strength = torch.tensor(strengths, dtype=torch.float64)
        neutral = torch.tensor([1.0, 1.0, 1.0, 0.0])
        low = neutral - strength
        low[:3].clamp_(min=0)
        high = neutral + strength
        u_factors = u[:, draws.FACTORS : draws.FACTORS + 4]
        orders = len(ORDERS) * u[:, draws.ORDER]
        return SimpleNamespace(
            angle=self.rotate * (2 * u[:, draws.ROTATE] - 1),
            flip=u[:, draws.FLIP] < self.flip,
            jitter=u[:, draws.JITTER] < self.jitter,
            factors=between(low, high, u_factors),
            order=ORDERS[orders.long()],
            grey=u[:, draws.GREY] < self.grey,
            blur=u[:, draws.BLUR] < self.blur,
            sigma=between(*self.blur_sigma, u[:, draws.SIGMA]),
            solarize=u[:, draws.SOLARIZE] < self.solarize,
        )

    @torch.no_grad()
    def _in_chunks(self, x: Tensor, u: Tensor, is_cropped: bool) -> Tensor:
        num_views, chunk = u.shape[:2]
        if x.device.type == "cpu":
            channels, height, width = x.shape[-3:]
            chunk = max(1, CHUNK_VALUES // (channels * self.pixels(height, width)))
        stacks = []
        for images, rows in zip(torch.split(x, chunk, dim=-4), torch.split(u, chunk, dim=1)):
            rows = rows.flatten(0, 1)
            params = self.parameters(rows)
            if is_cropped:
                images = images.flatten(0, 1)
                if self.rotate:
                    images = rotate(images, params.angle)
            else:
                boxes = self.boxes(rows, *images.shape[2:])
                angle = params.angle if self.rotate else None
                images = images.repeat(num_views, 1, 1, 1)
                images = crop_resize(images, boxes, self.size, angle)
            views = self._flip_and_recolour(images, params)
            stacks.append(views.view(num_views, -1, *views.shape[1:]))
        return torch.cat(stacks, dim=1)

    def _flip_and_recolour(self, x: Tensor, params: SimpleNamespace) -> Tensor:
        mirror = partial(torch.flip, dims=[3])
        x = apply_where(params.flip, mirror, x)
        x = apply_where(params.jitter, color_jitter, x, params.factors, params.order)
        if x.shape[1] == 3:
            x = apply_where(params.grey, luma, x)
        # The kernel reaches four standard deviations of the widest Gaussian.
        reach = 4 * self.blur_sigma[1]
        radius = min(int(reach + 0.5), self.size - 1)
        blur_samples = partial(blur, radius=radius)
        x = apply_where(params.blur, blur_samples, x, params.sigma)
        return apply_where(params.solarize, solarize, x)


class Views:
    """The pipelines that make a sample's views.

    One pipeline with ``num_crops=2`` gives a symmetric pair of views, and two pipelines with
    ``num_crops=1`` an asymmetric pair. Further pipelines with a smaller ``size`` add small crops.

    >>> views = Views([Pipeline(size=32), Pipeline(size=16, num_crops=6)])
    >>> views.num_large_crops, views.num_small_crops
    (2, 6)
    >>> u = views.uniforms(range(5), seed=0, epoch=3)
    >>> [tuple(stack.shape) for stack in views(torch.rand(5, 3, 32, 32), u)]
    [(2, 5, 3, 32, 32), (6, 5, 3, 16, 16)]
    """

    def __init__(self, pipelines: Sequence[Pipeline]) -> None:
        self.pipelines = list(pipelines)
        sizes = [pipeline.size for pipeline in pipelines]
        if sizes != sorted(sizes, reverse=True):
            raise UserError(
                f"dataset.views.pipelines has sizes {sizes}: list the largest first, since methods "
                "treat the first views as the large ones"
            )
        self.counts = [pipeline.num_crops for pipeline in self.pipelines]
        self.num_large_crops = sum(self.counts[: sizes.count(sizes[0])])
        self.num_small_crops = sum(self.counts) - self.num_large_crops

    def __call__(self, x: Tensor, u: Tensor) -> list[Tensor]:
        """Return each pipeline's views, ``(num_crops, n, C, size, size)``; see `Pipeline`.

        ``u`` are the `uniforms` of the images' indices.
        """
        tables = torch.split(u, self.counts)
        return [pipeline(x, table) for pipeline, table in zip(self.pipelines, tables)]

    def pixels(self, height: int, width: int) -> int:
        """Return how many pixels the views of one image have; see `Pipeline.pixels`."""
        return sum(pipeline.pixels(height, width) for pipeline in self.pipelines)

    def finish(self, crops: Sequence[Tensor], u: Tensor) -> list[Tensor]:
        """Apply the operations after the crop to each pipeline's crops; see `Pipeline.finish`."""
        tables = torch.split(u, self.counts)
        rows = zip(self.pipelines, crops, tables)
        return [pipeline.finish(x, table) for pipeline, x, table in rows]

    def uniforms(self, samples: Sequence[int] | Tensor, seed: int, epoch: int) -> Tensor:
        """Return a table of uniform numbers for each view, ``(V, n, DRAWS)``.

        A row depends only on the seed, the epoch, the view and the sample's index.
        """
        tables = []
        for view in range(sum(self.counts)):
            tables.append(draws.random_rows(samples, seed, epoch, view, "rows"))
        return torch.stack(tables)

    def boxes(self, u: Tensor, height: int, width: int) -> Tensor:
        """Return the boxes ``(V, 4)`` of one image's crops; ``u`` (``(V, DRAWS)``) are uniforms."""
        tables = torch.split(u, self.counts)
        boxes = []
        for pipeline, rows in zip(self.pipelines, tables):
            boxes.append(pipeline.boxes(rows, height, width))
        return torch.cat(boxes)
