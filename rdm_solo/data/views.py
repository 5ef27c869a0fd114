"""Augment batches, with independent random parameters for each sample.

A `Pipeline` maps ``n`` images and an ``(n, DRAWS)`` table of uniform numbers to ``n`` views. It is
deterministic and works row by row: a sample's view does not depend on the rest of its batch, the
batch size or the number of processes. Operations and distributions are those of torchvision's
``RandomResizedCrop``, ``RandomHorizontalFlip``, ``ColorJitter``, ``RandomGrayscale``,
``GaussianBlur`` and ``RandomSolarize``, in this order.

The table stays on the CPU, so choosing the samples for an operation does not wait for a GPU. Images
are processed by elementwise operations, gathers and one ``grid_sample``, without matrix products,
whose precision TF32 or autocast would lower.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import Tensor

from rdm_solo.data import draws
from rdm_solo.data.images import SIDES
from rdm_solo.data.operations import blur, color_jitter, crop_boxes, crop_resize, luma, solarize
from rdm_solo.ground.errors import UserError
from rdm_solo.ground.values import check_integer, check_number

ORDERS = torch.tensor(list(itertools.permutations(range(4))))  # of the jitter's operations

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
        for name, largest in (("crop_scale", 1.0), ("crop_ratio", None), ("blur_sigma", None)):
            object.__setattr__(self, name, _two_numbers(name, getattr(self, name), largest))

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        return self._in_chunks(self._full_view, x, self.parameters(u, *x.shape[2:]))

    def finish(self, crops: Tensor, u: Tensor) -> Tensor:
        """Apply the operations after the crop: bytes ``(n, C, size, size)`` to floats in [0, 1].

        For image files, workers decode and crop with `boxes` and the same ``u``.
        """
        return self._in_chunks(self._after_the_crop, crops, self._colours(u))

    def boxes(self, u: Tensor, height: int, width: int) -> Tensor:
        """Return the crop of each row of ``u``; see `crop_boxes`."""
        return crop_boxes(u, height, width, self.crop_scale, self.crop_ratio)

    def parameters(self, u: Tensor, height: int, width: int) -> SimpleNamespace:
        """Return the parameters of every operation for the rows of ``u``, by name."""
        return SimpleNamespace(boxes=self.boxes(u, height, width), **vars(self._colours(u)))

    def _colours(self, u: Tensor) -> SimpleNamespace:
        """Return the parameters of the operations after the crop."""
        u = u.double()
        blends = (self.brightness, self.contrast, self.saturation)
        limits = [(max(0.0, 1 - strength), 1 + strength) for strength in blends]
        sigma_min, sigma_max = self.blur_sigma
        low, high = torch.tensor([*limits, (-self.hue, self.hue)], dtype=torch.float64).T
        return SimpleNamespace(
            flip=u[:, draws.FLIP] < self.flip,
            angle=self.rotate * (2 * u[:, draws.ROTATE] - 1),
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
        self, apply: Callable[[Tensor, SimpleNamespace], Tensor], x: Tensor, params: SimpleNamespace
    ) -> Tensor:
        """Apply a function to all samples; on a CPU, in chunks."""
        chunk = CHUNK_VALUES // (x.shape[1] * self.size**2)
        if x.device.type != "cpu" or chunk >= len(x):
            return apply(x, params)
        dtype = x.dtype if x.is_floating_point() else torch.float32
        views = torch.empty(len(x), x.shape[1], self.size, self.size, dtype=dtype)
        for low in range(0, len(x), max(1, chunk)):
            rows = slice(low, low + max(1, chunk))
            columns = {name: column[rows] for name, column in vars(params).items()}
            views[rows] = apply(x[rows], SimpleNamespace(**columns))
        return views

    def _full_view(self, x: Tensor, params: SimpleNamespace) -> Tensor:
        angle = params.angle if self.rotate else None
        return self._recolour(crop_resize(x, params.boxes, self.size, params.flip, angle), params)

    def _after_the_crop(self, crops: Tensor, params: SimpleNamespace) -> Tensor:
        x = crops.float().div_(255)
        if self.rotate:
            box = torch.tensor([[0, 0, self.size, self.size]]).expand(len(x), 4)
            x = crop_resize(x, box, self.size, params.flip, params.angle)
        else:
            x = _where(params.flip, lambda rows: rows.flip(-1), x)
        return self._recolour(x, params)

    def _recolour(self, x: Tensor, params: SimpleNamespace) -> Tensor:
        x = _where(params.jitter, color_jitter, x, params.factors, params.order)
        grey = x.shape[1] == 3 and all(params.grey.tolist())
        if grey:
            x = luma(x)  # one channel to blur instead of three equal ones
        elif x.shape[1] == 3:
            x = _where(params.grey, lambda rows: luma(rows).repeat(1, 3, 1, 1), x)
        radius = min(max(1, int(4 * self.blur_sigma[1] + 0.5)), self.size - 1)
        x = _where(params.blur, lambda rows, sigma: blur(rows, sigma, radius), x, params.sigma)
        x = _where(params.solarize, lambda rows: solarize(rows, self.solarize_threshold), x)
        return x.repeat(1, 3, 1, 1) if grey else x


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
        self.pipelines = list(pipelines) if isinstance(pipelines, Sequence) else []
        if not self.pipelines or not all(isinstance(p, Pipeline) for p in self.pipelines):
            raise UserError(
                f"dataset.views.pipelines must be a list of Pipelines, got {pipelines!r:.80} (in "
                "YAML, put `_convert_: all` next to the _target_ of the views)"
            )
        sizes = [pipeline.size for pipeline in self.pipelines]
        if sizes != sorted(sizes, reverse=True):
            raise UserError(
                f"dataset.views.pipelines has sizes {sizes}: list the largest first, since methods "
                "treat the first views as the large ones"
            )
        self.per_view = [pipeline for pipeline in self.pipelines for _ in range(pipeline.num_crops)]
        self.num_large_crops = sum(pipeline.size == sizes[0] for pipeline in self.per_view)
        self.num_small_crops = len(self.per_view) - self.num_large_crops

    def uniforms(self, samples: Sequence[int] | Tensor, seed: int, epoch: int) -> list[Tensor]:
        """Return an ``(n, DRAWS)`` table of uniform numbers for each view, a row for each sample.

        A row depends only on the seed, the epoch, the view and the sample's index.
        """
        views = range(len(self.per_view))
        return [draws.random_rows(samples, seed, epoch, view, "rows") for view in views]

    def boxes(self, uniforms: Sequence[Tensor], height: int, width: int) -> Tensor:
        """Return the boxes ``(V, 4)`` of one image's crops, from one row of uniforms per view."""
        rows = iter(uniforms)
        parts = ((p, torch.cat(list(itertools.islice(rows, p.num_crops)))) for p in self.pipelines)
        return torch.cat([pipeline.boxes(u, height, width) for pipeline, u in parts])


def _where(mask: Tensor, transform: Callable[..., Tensor], x: Tensor, *columns: Tensor) -> Tensor:
    """Apply ``transform`` to the rows in ``mask`` (on the CPU); may overwrite ``x``."""
    count = sum(mask.tolist())
    if count == 0:
        return x
    if count == len(x):
        return transform(x, *columns)
    rows = mask.nonzero()[:, 0]
    indices = rows.to(x.device, non_blocking=True)
    part = x.index_select(0, indices)
    return x.index_copy_(0, indices, transform(part, *(column[rows] for column in columns)))


def _two_numbers(name: str, value: Sequence[float], largest: float | None) -> tuple[float, float]:
    try:
        low, high = (float(v) for v in value)
    except (TypeError, ValueError):
        low, high = math.nan, math.nan
    if not 0 < low <= high <= (largest or math.inf) or math.isinf(high):
        limit = "" if largest is None else f" and at most {largest:g}"
        raise UserError(
            f"{name} must be two numbers [smallest, largest] above 0{limit}, got {value!r}."
        )
    return low, high
