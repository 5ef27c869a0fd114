"""Augment batches, with independent random parameters for each sample.

A `Pipeline` maps ``n`` images and an ``(n, DRAWS)`` table of uniform numbers to ``n`` views. It is
deterministic and works row by row: a sample's view does not depend on the rest of its batch, the
batch size or the number of processes. Operations and distributions are those of torchvision's
``RandomResizedCrop``, ``RandomHorizontalFlip``, ``ColorJitter``, ``RandomGrayscale``,
``GaussianBlur`` and ``RandomSolarize``, in this order. A rotation follows the flip.

The table stays on the CPU, so choosing the samples for an operation does not wait for a GPU. Images
are processed by elementwise operations, gathers and one ``grid_sample``, without matrix products,
whose precision TF32 or autocast would lower.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from rdm_solo.data import draws
from rdm_solo.data.images import SIDES
from rdm_solo.data.operations import (
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

    Calling it maps ``x`` (``(n, C, H, W)``, floats in [0, 1], any device) and ``u`` (``(n, DRAWS)``
    uniforms on the CPU) to ``(n, C, size, size)``. Row ``i`` of the result depends only on row
    ``i`` of both. Images that are not RGB skip saturation, hue and grey.

    >>> pipeline = Pipeline(size=16, crop_scale=(0.5, 1.0))
    >>> pipeline(torch.rand(4, 3, 32, 32), torch.rand(4, draws.DRAWS)).shape
    torch.Size([4, 3, 16, 16])
    """

    size: int  #: side of the (square) views in pixels
    num_crops: int = 2  #: views of this distribution per sample
    crop_scale: Sequence[float] = (0.2, 1.0)  #: smallest and largest share of the area in a crop
    crop_ratio: Sequence[float] = (3 / 4, 4 / 3)  #: smallest and largest width / height of a crop
    flip: float = 0.5  #: probability of a horizontal flip
    jitter: float = 0.8  #: probability of the colour jitter, its four operations in random order
    brightness: float = 0.4  #: factors are uniform in [max(0, 1 - brightness), 1 + brightness]
    contrast: float = 0.4  #: likewise
    saturation: float = 0.4  #: likewise
    hue: float = 0.1  #: the shift is uniform in [-hue, hue], in turns; at most 0.5
    grey: float = 0.2  #: probability of a grey view
    blur: float = 0.0  #: probability of a Gaussian blur
    blur_sigma: Sequence[float] = (0.1, 2.0)  #: smallest and largest standard deviation, in pixels
    solarize: float = 0.0  #: probability of solarisation
    solarize_threshold: float = 0.5  #: values at or above it are inverted
    rotate: float = 0.0  #: angles are uniform in [-rotate, rotate], in radians

    def __post_init__(self) -> None:
        check_integer("size (dataset.image_size)", self.size, *SIDES)
        check_integer("num_crops", self.num_crops, 1)
        for name in ("flip", "jitter", "grey", "blur", "solarize", "solarize_threshold"):
            check_number(name, getattr(self, name), 0, 1)
        for name in ("brightness", "contrast", "saturation", "rotate"):
            check_number(name, getattr(self, name), 0)
        check_number("hue", self.hue, 0, 0.5)
        for name in ("crop_scale", "crop_ratio", "blur_sigma"):
            interval = _check_interval(name, getattr(self, name))
            object.__setattr__(self, name, interval)
        check_number("crop_scale", self.crop_scale[1], 0, 1)

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        return self._in_chunks(self._crop_and_recolour, x, u)

    def finish(self, crops: Tensor, u: Tensor) -> Tensor:
        """Apply the operations after the crop: bytes ``(n, C, size, size)`` to floats in [0, 1].

        For image files, workers decode and crop with `boxes` and the same ``u``.
        """
        return self._in_chunks(self._finish, crops, u)

    def boxes(self, u: Tensor, height: int, width: int) -> Tensor:
        """Return the crop of each row of ``u``; see `crop_boxes`."""
        return crop_boxes(u, height, width, self.crop_scale, self.crop_ratio)

    def parameters(self, u: Tensor) -> SimpleNamespace:
        """Return the parameters of the operations after the crop, a row for each row of ``u``."""
        u = u.double()
        flip = u[:, draws.FLIP] < self.flip
        angle = self.rotate * (2 * u[:, draws.ROTATE] - 1)
        # Factors are around 1 and not negative. The shift of the hue is around 0.
        strengths = [self.brightness, self.contrast, self.saturation, self.hue]
        strength = torch.tensor(strengths, dtype=torch.float64)
        neutral = torch.tensor([1.0, 1.0, 1.0, 0.0])
        low = neutral - strength
        low[:3].clamp_(min=0)
        high = neutral + strength
        sigma_min, sigma_max = self.blur_sigma
        return SimpleNamespace(
            flip=flip,
            # torchvision would flip and then rotate by the angle. Rotating by minus the angle and
            # then flipping gives the same image.
            angle=torch.where(flip, -angle, angle),
            jitter=u[:, draws.JITTER] < self.jitter,
            factors=low + (high - low) * u[:, draws.FACTORS : draws.FACTORS + 4],
            order=ORDERS[(u[:, draws.ORDER] * len(ORDERS)).long()],
            grey=u[:, draws.GREY] < self.grey,
            blur=u[:, draws.BLUR] < self.blur,
            sigma=sigma_min + (sigma_max - sigma_min) * u[:, draws.SIGMA],
            solarize=u[:, draws.SOLARIZE] < self.solarize,
        )

    @torch.no_grad()
    def _in_chunks(
        self, transform: Callable[[Tensor, Tensor], Tensor], x: Tensor, u: Tensor
    ) -> Tensor:
        """Apply ``transform`` to all rows of ``x`` and ``u``; on a CPU, in chunks."""
        n, channels = x.shape[:2]
        chunk = max(1, CHUNK_VALUES // (channels * self.size**2))
        if x.device.type != "cpu" or n <= chunk:
            return transform(x, u)
        dtype = x.dtype if x.is_floating_point() else torch.float32
        views = torch.empty(n, channels, self.size, self.size, dtype=dtype)
        for low in range(0, n, chunk):
            rows = slice(low, low + chunk)
            views[rows] = transform(x[rows], u[rows])
        return views

    def _crop_and_recolour(self, x: Tensor, u: Tensor) -> Tensor:
        params = self.parameters(u)
        boxes = self.boxes(u, *x.shape[2:])
        angle = params.angle if self.rotate else None
        x = crop_resize(x, boxes, self.size, angle)
        return self._flip_and_recolour(x, params)

    def _finish(self, crops: Tensor, u: Tensor) -> Tensor:
        params = self.parameters(u)
        x = crops.float().div_(255)
        if self.rotate:
            x = rotate(x, params.angle)
        return self._flip_and_recolour(x, params)

    def _flip_and_recolour(self, x: Tensor, params: SimpleNamespace) -> Tensor:
        x = _apply_where(params.flip, _mirror, x)
        x = _apply_where(params.jitter, color_jitter, x, params.factors, params.order)
        if x.shape[1] == 3:
            x = _apply_where(params.grey, _grey_rgb, x)
        # The kernel reaches four standard deviations of the widest Gaussian.
        radius = max(1, int(4 * self.blur_sigma[1] + 0.5))
        radius = min(radius, self.size - 1)
        x = _apply_where(params.blur, partial(blur, radius=radius), x, params.sigma)
        threshold = self.solarize_threshold
        return _apply_where(params.solarize, partial(solarize, threshold=threshold), x)


def _mirror(x: Tensor) -> Tensor:
    return x.flip(3)


def _grey_rgb(x: Tensor) -> Tensor:
    return luma(x).repeat(1, 3, 1, 1)


def _apply_where(
    mask: Tensor, operation: Callable[..., Tensor], x: Tensor, *columns: Tensor
) -> Tensor:
    """Apply an operation to the rows in ``mask``, which is on the CPU. May overwrite ``x``."""
    rows = mask.nonzero()[:, 0]
    if len(rows) == 0:
        return x
    if len(rows) == len(x):
        return operation(x, *columns)
    indices = rows.to(x.device, non_blocking=True)
    selected = [column[rows] for column in columns]
    changed = operation(x.index_select(0, indices), *selected)
    return x.index_copy_(0, indices, changed)


def _check_interval(name: str, value: Any) -> tuple[float, float]:
    if not isinstance(value, Sequence) or len(value) != 2:
        raise UserError(f"{name} must be two numbers [smallest, largest], got {value!r}.")
    low = check_number(name, value[0], above=0)
    return low, check_number(name, value[1], low)


class Views:
    """The pipelines that make a sample's views.

    One pipeline with ``num_crops=2`` gives a symmetric pair of views, and two pipelines with
    ``num_crops=1`` an asymmetric pair. Further pipelines with a smaller ``size`` add small crops.
    ``per_view`` lists the pipeline of each view.

    >>> views = Views([Pipeline(size=32), Pipeline(size=16, num_crops=6)])
    >>> len(views.per_view), views.num_large_crops, views.num_small_crops
    (8, 2, 6)
    >>> u = views.uniforms(range(5), seed=0, epoch=3)
    >>> views.per_view[7](torch.rand(5, 3, 32, 32), u[7]).shape
    torch.Size([5, 3, 16, 16])
    """

    def __init__(self, pipelines: Sequence[Pipeline]) -> None:
        if not pipelines or not all(isinstance(pipeline, Pipeline) for pipeline in pipelines):
            raise UserError(
                f"dataset.views.pipelines must be a list of Pipelines, got {pipelines!r:.80} (in "
                "YAML, put `_convert_: all` next to the _target_ of the views)"
            )
        self.pipelines = list(pipelines)
        sizes = [pipeline.size for pipeline in self.pipelines]
        if sizes != sorted(sizes, reverse=True):
            raise UserError(
                f"dataset.views.pipelines has sizes {sizes}: list the largest first, since methods "
                "treat the first views as the large ones"
            )
        self.per_view: list[Pipeline] = []
        for pipeline in self.pipelines:
            self.per_view += [pipeline] * pipeline.num_crops
        self.num_large_crops = sum(pipeline.size == sizes[0] for pipeline in self.per_view)
        self.num_small_crops = len(self.per_view) - self.num_large_crops

    def uniforms(self, samples: Sequence[int] | Tensor, seed: int, epoch: int) -> Tensor:
        """Return a table of uniform numbers for each view, ``(V, n, DRAWS)``.

        A row depends only on the seed, the epoch, the view and the sample's index.
        """
        views = range(len(self.per_view))
        tables = [draws.random_rows(samples, seed, epoch, view, "rows") for view in views]
        return torch.stack(tables)

    def boxes(self, u: Tensor, height: int, width: int) -> Tensor:
        """Return the boxes ``(V, 4)`` of one image's crops; ``u`` (``(V, DRAWS)``) are uniforms."""
        counts = [pipeline.num_crops for pipeline in self.pipelines]
        boxes = []
        for pipeline, rows in zip(self.pipelines, torch.split(u, counts)):
            boxes.append(pipeline.boxes(rows, height, width))
        return torch.cat(boxes)
