"""Batched augmentation in which every sample has its own draw.

A :class:`Pipeline` turns ``n`` images and an ``(n, DRAWS)`` table of uniform numbers into ``n``
views. It is a deterministic function of both, row by row: what a sample becomes does not depend
on its neighbours, so neither on the batch size nor on the number of processes. Operations and
distributions are those of torchvision's ``RandomResizedCrop``, ``RandomHorizontalFlip``,
``ColorJitter``, ``RandomGrayscale``, ``GaussianBlur`` and ``RandomSolarize``, in this order.

The table stays on the CPU. Which samples an operation applies to is therefore known on the host,
and a GPU is never asked (and never waited for). Images are processed by elementwise operations,
gathers and one ``grid_sample``, no matrix product: neither TF32 nor autocast can blur them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rdm_solo.data import draws
from rdm_solo.data.colour import blur, color_jitter, luma, solarize
from rdm_solo.data.draws import DRAWS, random_rows
from rdm_solo.data.geometry import crop_boxes, crop_resize
from rdm_solo.data.images import check_side
from rdm_solo.messages import check_number, check_whole

__all__ = ["Parameters", "Pipeline", "Views"]

ORDERS = torch.tensor(list(itertools.permutations(range(4))))  # of the jitter's operations

# A CPU works through a batch in pieces whose images stay near its cache.
_PIECE_VALUES = 128 * 3 * 32 * 32


class Parameters(NamedTuple):
    """What a pipeline does to each of ``n`` samples; every field's first dimension is ``n``."""

    boxes: Tensor
    flip: Tensor
    angle: Tensor
    jitter: Tensor
    factors: Tensor
    order: Tensor
    grey: Tensor
    blur: Tensor
    sigma: Tensor
    solarize: Tensor


@dataclass(frozen=True)
class Pipeline:
    """One distribution of views, and how many of them a sample gets.

    Calling it maps ``x`` (``(n, C, H, W)``, floats in [0, 1], any device) and ``u`` (``(n, DRAWS)``
    uniforms on the CPU) to ``(n, C, size, size)``. Row ``i`` of the result depends on the rows
    ``i`` alone. Images that are not RGB skip saturation, hue and grey.

    >>> pipeline = Pipeline(size=16, crop_scale=(0.5, 1.0))
    >>> pipeline(torch.rand(4, 3, 32, 32), torch.rand(4, DRAWS)).shape
    torch.Size([4, 3, 16, 16])

    Args:
        size: side of the (square) views in pixels.
        num_crops: views of this distribution per sample.
        crop_scale: smallest and largest share of the image's area in a crop.
        crop_ratio: smallest and largest aspect ratio (width / height) of a crop.
        flip: probability of a horizontal flip.
        jitter: probability of the colour jitter, whose four operations come in random order.
        brightness: factors are uniform in [max(0, 1 - brightness), 1 + brightness].
        contrast: likewise.
        saturation: likewise.
        hue: the shift is uniform in [-hue, hue], in turns; at most 0.5.
        grey: probability of a grey view.
        blur: probability of a Gaussian blur.
        blur_sigma: smallest and largest standard deviation of the blur, in pixels.
        solarize: probability of solarisation.
        solarize_threshold: values from here on are inverted.
        rotate: largest rotation either way, in radians; uniform.
    """

    size: int
    num_crops: int = 2
    crop_scale: Sequence[float] = (0.2, 1.0)
    crop_ratio: Sequence[float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    jitter: float = 0.8
    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.1
    grey: float = 0.2
    blur: float = 0.0
    blur_sigma: Sequence[float] = (0.1, 2.0)
    solarize: float = 0.0
    solarize_threshold: float = 0.5
    rotate: float = 0.0

    def __post_init__(self) -> None:
        check_side("size (dataset.image_size)", self.size)
        check_whole("num_crops", self.num_crops, 1)
        for name in ("flip", "jitter", "grey", "blur", "solarize", "solarize_threshold"):
            check_number(name, getattr(self, name), 0, 1)
        for name in ("brightness", "contrast", "saturation", "rotate"):
            check_number(name, getattr(self, name), 0)
        check_number("hue", self.hue, 0, 0.5)
        for name, largest in (("crop_scale", 1.0), ("crop_ratio", None), ("blur_sigma", None)):
            # A YAML list arrives as a list type of its own; a tuple keeps this object hashable.
            object.__setattr__(self, name, _check_range(name, getattr(self, name), largest))

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        if x.ndim != 4 or not x.is_floating_point():
            raise ValueError(
                f"a pipeline takes floating-point images of shape (n, C, H, W), got {x.dtype} of "
                f"shape {tuple(x.shape)}"
            )
        if u.shape != (len(x), DRAWS) or u.device.type != "cpu":
            raise ValueError(
                f"a pipeline takes a CPU table of {len(x)} x {DRAWS} uniform numbers for "
                f"{len(x)} images, got {tuple(u.shape)} on {u.device}"
            )
        n, channels, height, width = x.shape
        if n == 0:
            return x.new_empty(0, channels, self.size, self.size)
        with torch.no_grad():
            return self._in_pieces(self._views, x, self.parameters(u, height, width))

    def finish(self, crops: Tensor, u: Tensor) -> Tensor:
        """The rest of a view after its crop: bytes ``(n, C, size, size)`` to floats in [0, 1].

        For files, whose crops are cut where they are decoded: from the boxes of `boxes` and the
        same ``u``.
        """
        if crops.dtype != torch.uint8 or crops.shape[2:] != (self.size, self.size):
            raise ValueError(
                f"a pipeline of size={self.size} finishes uint8 crops of that size, got "
                f"{crops.dtype} of shape {tuple(crops.shape)}"
            )
        with torch.no_grad():
            drawn = self.parameters(u, self.size, self.size)
            return self._in_pieces(self._finish, crops, drawn)

    def boxes(self, u: Tensor, height: int | Tensor, width: int | Tensor) -> Tensor:
        """The crops that the rows of ``u`` mean; see `crop_boxes`."""
        return crop_boxes(u, height, width, self.crop_scale, self.crop_ratio)

    def _in_pieces(
        self, apply: Callable[[Tensor, Parameters], Tensor], x: Tensor, drawn: Parameters
    ) -> Tensor:
        n, piece = len(x), len(x)
        if x.device.type == "cpu":
            piece = max(1, _PIECE_VALUES // (x.shape[1] * self.size**2))
        views = [
            apply(x[low : low + piece], Parameters(*(p[low : low + piece] for p in drawn)))
            for low in range(0, n, piece)
        ]
        return torch.cat(views) if len(views) > 1 else views[0]

    def parameters(self, u: Tensor, height: int, width: int) -> Parameters:
        """What the rows of ``u`` mean for images of ``height`` by ``width`` pixels."""
        u = u.double()
        blends = (self.brightness, self.contrast, self.saturation)
        limits = [(max(0.0, 1 - strength), 1 + strength) for strength in blends]
        least, most = self.blur_sigma
        low, high = torch.tensor([*limits, (-self.hue, self.hue)], dtype=torch.float64).T
        return Parameters(
            boxes=self.boxes(u, height, width),
            flip=u[:, draws.FLIP] < self.flip,
            angle=self.rotate * (2 * u[:, draws.ROTATE] - 1),
            jitter=u[:, draws.JITTER] < self.jitter,
            factors=low + (high - low) * u[:, draws.FACTORS : draws.FACTORS + 4],
            order=ORDERS[(u[:, draws.ORDER] * len(ORDERS)).long()],
            grey=u[:, draws.GREY] < self.grey,
            blur=u[:, draws.BLUR] < self.blur,
            sigma=least + (most - least) * u[:, draws.SIGMA],
            solarize=u[:, draws.SOLARIZE] < self.solarize,
        )

    def _views(self, x: Tensor, drawn: Parameters) -> Tensor:
        flip = drawn.flip if self.flip else None
        angle = drawn.angle if self.rotate else None
        return self._recolour(crop_resize(x, drawn.boxes, self.size, flip, angle), drawn)

    def _finish(self, crops: Tensor, drawn: Parameters) -> Tensor:
        x = crops.float().div_(255)
        if self.rotate:
            whole = torch.tensor([[0, 0, self.size, self.size]]).expand(len(x), 4)
            x = crop_resize(x, whole, self.size, drawn.flip, drawn.angle)
        else:
            x = _where(drawn.flip, lambda rows: rows.flip(-1), x)
        return self._recolour(x, drawn)

    def _recolour(self, x: Tensor, drawn: Parameters) -> Tensor:
        x = _where(drawn.jitter, color_jitter, x, drawn.factors, drawn.order)
        if x.shape[1] == 3:
            x = _where(drawn.grey, lambda rows: luma(rows).repeat(1, 3, 1, 1), x)
        radius = min(max(1, int(4 * self.blur_sigma[1] + 0.5)), self.size - 1)
        x = _where(drawn.blur, lambda rows, sigma: blur(rows, sigma, radius), x, drawn.sigma)
        return _where(drawn.solarize, lambda rows: solarize(rows, self.solarize_threshold), x)


class Views:
    """The views of a sample: each pipeline's, one after the other.

    One pipeline with ``num_crops=2`` is a symmetric pair, two with ``num_crops=1`` an asymmetric
    one, and further pipelines of a smaller ``size`` make multi-crop.

    >>> views = Views([Pipeline(size=32), Pipeline(size=16, num_crops=6)])
    >>> views.num_crops, views.num_large_crops, views.num_small_crops
    (8, 2, 6)
    >>> u = views.uniforms(range(5), seed=0, epoch=3)
    >>> views.view(torch.rand(5, 3, 32, 32), 7, u[7]).shape
    torch.Size([5, 3, 16, 16])
    """

    def __init__(self, pipelines: Sequence[Pipeline]) -> None:
        self.pipelines = tuple(pipelines)
        if not self.pipelines:
            raise ValueError("views.pipelines is empty: give at least one Pipeline")
        strangers = [type(p).__name__ for p in self.pipelines if not isinstance(p, Pipeline)]
        if strangers:
            raise ValueError(
                f"views.pipelines holds {', '.join(strangers)}: give Pipeline objects (in YAML, "
                "put `_convert_: all` beside the _target_ of the views)"
            )
        sizes = [pipeline.size for pipeline in self.pipelines]
        if sizes != sorted(sizes, reverse=True):
            raise ValueError(
                f"views.pipelines has sizes {sizes}: list the largest first, since methods take "
                "the first views for the large ones"
            )
        self._pipeline_of = [p for p in self.pipelines for _ in range(p.num_crops)]

    @property
    def num_crops(self) -> int:
        """Views of a sample, all pipelines together."""
        return len(self._pipeline_of)

    @property
    def num_large_crops(self) -> int:
        """Views of the largest size."""
        return sum(p.size == self.pipelines[0].size for p in self._pipeline_of)

    @property
    def num_small_crops(self) -> int:
        """Views below the largest size."""
        return self.num_crops - self.num_large_crops

    def uniforms(self, samples: Sequence[int] | Tensor, seed: int, epoch: int) -> list[Tensor]:
        """For each view an ``(n, DRAWS)`` table of uniform numbers, a row for each of ``samples``.

        A row depends on the seed, the epoch, the view and the sample's number alone. Images in
        memory and in files use the same ones.
        """
        return [
            random_rows(samples, seed, epoch, view, "rows")
            for view in range(len(self._pipeline_of))
        ]

    def pipeline(self, index: int) -> Pipeline:
        """The pipeline that makes view number ``index``."""
        return self._pipeline_of[index]

    def view(self, x: Tensor, index: int, u: Tensor) -> Tensor:
        """View number ``index`` of the images ``x``, made from the uniform numbers ``u``."""
        return self._pipeline_of[index](x, u)


def _where(chosen: Tensor, transform: Callable[..., Tensor], x: Tensor, *columns: Tensor) -> Tensor:
    """``transform`` on the ``chosen`` rows (a mask on the CPU); ``x`` may be overwritten."""
    rows = chosen.nonzero()[:, 0]
    if len(rows) == 0:
        return x
    if len(rows) == len(x):
        return transform(x, *columns)
    place = rows.to(x.device, non_blocking=True)
    picked = x.index_select(0, place)
    return x.index_copy_(0, place, transform(picked, *(column[rows] for column in columns)))


def _check_range(name: str, value: Sequence[float], largest: float | None) -> tuple[float, float]:
    try:
        low, high = (float(v) for v in value)
    except (TypeError, ValueError):
        low, high = math.nan, math.nan
    if not 0 < low <= high <= (largest or math.inf) or math.isinf(high):
        limit = "" if largest is None else f" and at most {largest:g}"
        raise ValueError(
            f"{name} must be two numbers [smallest, largest] above 0{limit}, got {value!r}."
        )
    return low, high
