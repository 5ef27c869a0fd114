"""Batched augmentation in which every sample has its own draw.

A :class:`Pipeline` turns ``n`` images and an ``(n, draws)`` table of uniform numbers into ``n``
views. It is a deterministic function of both, row by row: what a sample becomes does not depend
on its neighbours, so neither on the batch size nor on the number of processes. Operations and
distributions are those of torchvision's ``RandomResizedCrop``, ``RandomHorizontalFlip``,
``ColorJitter``, ``RandomGrayscale``, ``GaussianBlur`` and ``RandomSolarize``, in this order.

The table stays on the CPU. Which samples an operation applies to is therefore known on the host,
and a GPU is never asked (and never waited for). Images are processed by elementwise operations,
gathers and one ``grid_sample``, no matrix product: neither TF32 nor autocast can blur them.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "DRAWS",
    "Parameters",
    "Pipeline",
    "Views",
    "blend",
    "blur",
    "color_jitter",
    "crop_boxes",
    "crop_resize",
    "generator",
    "luma",
    "random_rows",
    "shift_hue",
    "solarize",
]

# Columns of the table. The first twenty are the ten tries of a crop's area and aspect ratio.
# Every pipeline reads the same columns, so switching one operation on leaves the others' draws.
_TRIES = 10
_TOP, _LEFT, _FLIP, _ROTATE, _JITTER, _FACTORS, _ORDER, _GREY, _BLUR, _SIGMA, _SOLARIZE = (
    *range(20, 26),
    *range(29, 34),
)
DRAWS = 34

_BRIGHTNESS, _CONTRAST, _SATURATION, _HUE = range(4)
_ORDERS = torch.tensor(list(itertools.permutations(range(4))))

# A CPU works through a batch in pieces whose images stay near its cache.
_PIECE_VALUES = 128 * 3 * 32 * 32


def generator(*key: int | str) -> torch.Generator:
    """A CPU generator whose seed is a hash of ``key``, such as ``(seed, epoch, view)``.

    torch's CPU generator keeps 32 bits of a seed, hence a hash rather than a sum: close or
    structured keys get unrelated seeds.

    >>> torch.rand(1, generator=generator(0, 1)) == torch.rand(1, generator=generator(1, 0))
    tensor([False])
    """
    digest = hashlib.blake2b(repr(key).encode(), digest_size=4).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))


def random_rows(index: Sequence[int], *key: int | str) -> Tensor:
    """Uniform rows of ``DRAWS`` numbers that depend on ``key`` and their ``index`` alone.

    A counter-based generator (SplitMix64: a row's number times a constant, then mixed), so that any
    row of a table of millions costs the same and no table is kept. 24 random bits a number.

    >>> rows = random_rows([7, 1_000_000], 0, "a key")
    >>> rows.shape, torch.equal(random_rows([1_000_000], 0, "a key")[0], rows[1])
    (torch.Size([2, 34]), True)
    """
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    start = np.frombuffer(digest, dtype="<u8")
    count = np.asarray(index, dtype=np.uint64)[:, None] * np.uint64(DRAWS)
    count = count + np.arange(1, DRAWS + 1, dtype=np.uint64)
    z = start + count * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return torch.from_numpy((z >> np.uint64(40)).astype(np.float32) * np.float32(2**-24))


def crop_boxes(
    u: Tensor,
    height: int | Tensor,
    width: int | Tensor,
    scale: Sequence[float],
    ratio: Sequence[float],
) -> Tensor:
    """The boxes of torchvision's ``RandomResizedCrop``, ``(n, 22)`` uniforms to ``(n, 4)``.

    Columns of the result are the integers top, left, height and width. Ten tries of an area (a
    share of the image between ``scale``) and of an aspect ratio (log-uniform between ``ratio``);
    the first box that fits is placed uniformly, and where none fits the largest central one is
    taken. Images of different sizes give ``height`` and ``width`` as ``(n,)``.

    >>> crop_boxes(torch.full((1, 22), 0.5), 32, 32, scale=(0.25, 0.25), ratio=(1.0, 1.0))
    tensor([[ 8,  8, 16, 16]])
    """
    u = u.double()
    height, width = (torch.as_tensor(side, dtype=torch.float64) for side in (height, width))
    area = (height * width).view(-1, 1) * (scale[0] + (scale[1] - scale[0]) * u[:, :_TRIES])
    low, high = math.log(ratio[0]), math.log(ratio[1])
    aspect = (low + (high - low) * u[:, _TRIES : 2 * _TRIES]).exp()
    h, w = (area / aspect).sqrt().round(), (area * aspect).sqrt().round()
    fits = (w > 0) & (w <= width.view(-1, 1)) & (h > 0) & (h <= height.view(-1, 1))
    first = fits.to(torch.uint8).argmax(1, keepdim=True)
    h, w = h.gather(1, first)[:, 0], w.gather(1, first)[:, 0]
    top = (u[:, _TOP] * (height - h + 1)).floor()
    left = (u[:, _LEFT] * (width - w + 1)).floor()
    box = torch.stack((top, left, h, w), 1)

    h = torch.minimum(height, (width / ratio[0]).round())
    w = torch.minimum(width, (height * ratio[1]).round())
    centre = torch.stack((((height - h) / 2).floor(), ((width - w) / 2).floor(), h, w), -1)
    return torch.where(fits.any(1, keepdim=True), box, centre).long()


def crop_resize(
    x: Tensor,
    boxes: Tensor,
    size: int,
    flip: Tensor | None = None,
    angle: Tensor | None = None,
) -> Tensor:
    """Cut ``boxes`` (``(n, 4)``: top, left, height, width) out of ``x`` and resize them.

    Bilinear, and equal to cropping first and resizing afterwards: no pixel outside the box
    contributes. ``flip`` (``(n,)``, bool) mirrors left and right; ``angle`` (``(n,)``, radians)
    then turns counter-clockwise about the centre, in the same resampling; corners that a rotation
    uncovers repeat the crop's edge. Images with a side above ``size`` are resized with
    antialiasing, as torchvision does, before they are turned.

    >>> x = torch.arange(16.0).view(1, 1, 4, 4)
    >>> crop_resize(x, torch.tensor([[1, 1, 2, 2]]), 2)
    tensor([[[[ 5.,  6.],
              [ 9., 10.]]]])
    """
    if max(x.shape[-2:]) > size:
        x = _shrink(x, boxes, size, flip)
        if angle is None:
            return x
        boxes, flip = torch.tensor([[0, 0, size, size]]).expand(len(x), 4), None

    top, left, height, width = _like(x, boxes).view(-1, 4, 1, 1).unbind(1)
    pos = torch.arange(size, device=x.device, dtype=x.dtype) - (size - 1) / 2
    dx, dy = pos.view(1, 1, -1), pos.view(1, -1, 1)
    if angle is not None:
        angle = angle.double()
        cos, sin = _like(x, angle.cos()).view(-1, 1, 1), _like(x, angle.sin()).view(-1, 1, 1)
        dx, dy = dx * cos - dy * sin, dx * sin + dy * cos
    if flip is not None:
        dx = dx * _like(x, 1 - 2 * flip.long()).view(-1, 1, 1)
    grid = torch.stack(
        (
            _grid_coordinate(dx, left, width, size, x.shape[-1]).expand(-1, size, size),
            _grid_coordinate(dy, top, height, size, x.shape[-2]).expand(-1, size, size),
        ),
        -1,
    )
    return F.grid_sample(x, grid, padding_mode="border", align_corners=False)


def _grid_coordinate(offset: Tensor, start: Tensor, length: Tensor, size: int, full: int) -> Tensor:
    """``grid_sample``'s coordinate of an output pixel's ``offset`` from the centre of a box."""
    at = (offset + size / 2) * (length / size) + start
    return at.maximum(start + 0.5).minimum(start + length - 0.5) * (2 / full) - 1


def _shrink(x: Tensor, boxes: Tensor, size: int, flip: Tensor | None) -> Tensor:
    """Crop and resize with a triangle filter as wide as the reduction, one axis at a time."""
    n, c, height, width = x.shape
    top, left, h, w = _like(x, boxes).view(-1, 4, 1, 1).unbind(1)
    rows = torch.arange(n * c, device=x.device).view(n, c, 1) * height
    flat, out = x.reshape(n * c * height, width), torch.zeros((), device=x.device, dtype=x.dtype)
    for index, weight in _taps(top, h, size, height, None):
        picked = flat.index_select(0, (rows + index[:, None]).flatten()).view(n, c, size, width)
        out = out + picked * weight[:, None, :, None]
    x, out = out, torch.zeros((), device=x.device, dtype=x.dtype)
    for index, weight in _taps(left, w, size, width, flip):
        picked = x.gather(3, index[:, None, None].expand(n, c, size, size))
        out = out + picked * weight[:, None, None]
    return out


def _taps(
    start: Tensor, length: Tensor, size: int, full: int, flip: Tensor | None
) -> list[tuple[Tensor, Tensor]]:
    """Source indices and weights, each ``(n, size)``, of the filter's taps along one axis."""
    start, length = start[:, 0], length[:, 0]
    pos = torch.arange(size, device=start.device).expand(len(start), size)
    if flip is not None:
        pos = torch.where(flip.to(pos.device, non_blocking=True)[:, None], size - 1 - pos, pos)
    stride = length / size
    support = stride.clamp_min(1)
    centre = (pos + 0.5) * stride
    first = (centre - support + 0.5).floor()
    # As many taps as the largest box needs, whatever boxes this batch holds.
    indices = [first + k for k in range(math.ceil(2 * max(1.0, full / size)))]
    weights = [
        (1 - (j + 0.5 - centre).abs() / support).clamp_min(0) * ((j >= 0) & (j < length))
        for j in indices
    ]
    total = torch.stack(weights).cumsum(0)[-1]
    last = length - 1
    return [
        ((j.clamp_min(0).minimum(last) + start).long(), weight / total)
        for j, weight in zip(indices, weights, strict=True)
    ]


def luma(x: Tensor) -> Tensor:
    """The grey value of RGB images, ``(n, 3, H, W)`` to ``(n, 1, H, W)``.

    >>> luma(torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1)).item()  # doctest: +ELLIPSIS
    0.298...
    """
    r, g, b = x[:, 0:1], x[:, 1:2], x[:, 2:3]
    return (r * 0.2989).add_(g * 0.587).add_(b * 0.114)


def blend(x: Tensor, operation: Tensor, factor: Tensor) -> Tensor:
    """Brightness (0), contrast (1) or saturation (2) by ``factor``, per sample and **in place**.

    All three are ``clamp(factor * x + (1 - factor) * reference, 0, 1)``; the reference is black,
    the image's mean grey value, or its grey version. ``operation`` and ``factor`` are ``(n,)``.

    >>> x = torch.full((2, 3, 1, 1), 0.5)
    >>> blend(x, torch.tensor([0, 1]), torch.tensor([1.5, 1.5]))[:, 0, 0, 0]
    tensor([0.7500, 0.5000])
    """
    contrast, saturation, factor = (
        _like(x, column).view(-1, 1, 1, 1)
        for column in (operation == _CONTRAST, operation == _SATURATION, factor)
    )
    rest = 1 - factor
    grey = luma(x) if x.shape[1] == 3 else x
    # Summed in float64, so that the mean has the same bits whatever the batch around the sample.
    mean = grey.sum((1, 2, 3), keepdim=True, dtype=torch.float64) / grey[0].numel()
    reference = mean.to(x.dtype) * (rest * contrast)
    if x.shape[1] == 3:
        reference = (grey * (rest * saturation)).add_(reference)
    return x.mul_(factor).add_(reference).clamp_(0, 1)


def shift_hue(x: Tensor, shift: Tensor) -> Tensor:
    """Turn the hue of RGB images by ``shift`` (``(n,)``, in turns), per sample and **in place**.

    Largest and smallest channel keep their values, as in HSV; only the hue moves.

    >>> shift_hue(torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1), torch.tensor([1 / 3])).flatten()
    tensor([0., 1., 0.])
    """
    r, g, b = x.unbind(1)
    high, low = torch.maximum(g, b), torch.minimum(g, b)
    top, bottom = torch.maximum(r, high), torch.minimum(r, low)
    delta = top - bottom
    # Sixths of a turn away from red, 0 to 3: (high - low)/delta in red's sector, and beyond it
    # 2 + (low - r)/delta. One expression for both costs a third of a comparison and a choice.
    hue = (low - r).relu_().add_(high).sub_(r).div_(delta.clamp_min(1e-30)).add_(1)
    hue = hue.copysign_(g - b).add_(6 * _like(x, shift).view(-1, 1, 1))
    hue.sub_((hue / 6).floor_().mul_(6))
    # Red falls from the top as the hue leaves 0 (and 6), the others as it leaves 2 and 4.
    centre = torch.tensor([3.0, 2.0, 4.0]).view(3, 1, 1)
    part = (hue[:, None] - _like(x, centre)).abs_().sub_(1).clamp_(0, 1).mul_(delta[:, None])
    torch.add(bottom, part[:, 0], out=r)
    torch.sub(top[:, None], part[:, 1:], out=x[:, 1:])
    return x


def color_jitter(x: Tensor, factors: Tensor, order: Tensor) -> Tensor:
    """Brightness, contrast, saturation and hue, each sample in an order of its own.

    ``factors`` is ``(n, 4)`` in that order of operations; ``order`` is ``(n, 4)``, and
    ``order[i, k]`` the operation (0 to 3) that sample ``i`` undergoes as its ``k``-th. Both live on
    the CPU. Saturation and hue leave images alone that are not RGB.

    >>> factors = torch.tensor([[0.5, 2.0, 1.0, 0.0]]).expand(2, 4)
    >>> order = torch.tensor([[0, 1, 2, 3], [1, 0, 2, 3]])
    >>> x = torch.tensor([0.0, 0.8]).view(1, 1, 1, 2).expand(2, 3, 1, 2)
    >>> color_jitter(x, factors, order)[:, 0, 0]
    tensor([[0.0000, 0.6000],
            [0.0000, 0.5000]])
    """
    operations = [_BRIGHTNESS, _CONTRAST] + [_SATURATION] * (x.shape[1] == 3)
    blends = torch.isin(order, torch.tensor(operations))
    # How many of the blends precede a sample's hue. Sorted by it, the samples whose hue comes at
    # a stage are a slice.
    slot = (blends.long().cumsum(1) * (order == _HUE)).sum(1)
    by_slot = slot.argsort(stable=True)
    place = by_slot.to(x.device, non_blocking=True)
    x, factors = x.index_select(0, place), factors[by_slot]
    stages = order[blends].view(-1, len(operations))[by_slot]
    ends = torch.bincount(slot, minlength=len(operations) + 1).cumsum(0).tolist()
    hue_moves = x.shape[1] == 3 and bool((factors[:, _HUE] != 0).any())
    for stage, (low, high) in enumerate(itertools.pairwise([0, *ends])):
        if hue_moves and high > low:
            shift_hue(x[low:high], factors[low:high, _HUE])
        if stage < len(operations):
            operation = stages[:, stage]
            blend(x, operation, factors.gather(1, operation[:, None])[:, 0])
    return torch.empty_like(x).index_copy_(0, place, x)


def blur(x: Tensor, sigma: Tensor, radius: int) -> Tensor:
    """Gaussian blur of ``x`` (``(n, C, H, W)``) with a ``sigma`` (``(n,)``) for each sample.

    The kernel reaches ``radius`` pixels, which must be less than a side; edges are reflected.

    >>> x = torch.zeros(1, 1, 5, 5)
    >>> x[0, 0, 2] = 1
    >>> blur(x, torch.tensor([0.5]), 1)[0, 0, :, 2]
    tensor([0.0000, 0.1065, 0.7870, 0.1065, 0.0000])
    """
    k = torch.arange(radius + 1, dtype=torch.float64)
    sigma = sigma.double().cpu()
    order = sigma.argsort(descending=True, stable=True)
    kernel = (-0.5 * (k / sigma[order, None]) ** 2).exp()
    # Taps that float32 would not see are left out; the widest kernels come first.
    reached = (kernel > 1e-8).sum(0).tolist()
    kernel = _like(x, kernel / (2 * kernel.sum(1, keepdim=True) - 1)).view(-1, radius + 1, 1, 1, 1)
    place = order.to(x.device, non_blocking=True)
    x = x.index_select(0, place)
    for axis, margin in ((3, (radius, radius, 0, 0)), (2, (0, 0, radius, radius))):
        wide = F.pad(x, margin, mode="reflect")
        x, pair, side = x * kernel[:, 0], torch.empty_like(x), x.shape[axis]
        for j, n in enumerate(reached[1:], 1):
            ends = (wide[:n].narrow(axis, radius + at, side) for at in (-j, j))
            x[:n] += torch.add(*ends, out=pair[:n]).mul_(kernel[:n, j])
    return torch.empty_like(x).index_copy_(0, place, x)


def solarize(x: Tensor, threshold: float) -> Tensor:
    """Invert every value that is at least ``threshold``.

    >>> solarize(torch.tensor([0.25, 0.75]), 0.5)
    tensor([0.2500, 0.2500])
    """
    return torch.where(x >= threshold, 1 - x, x)


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

    Calling it maps ``x`` (``(n, C, H, W)``, floats in [0, 1], any device) and ``u`` (``(n, draws)``
    uniforms on the CPU) to ``(n, C, size, size)``. Row ``i`` of the result depends on the rows
    ``i`` alone. Images that are not RGB skip saturation, hue and grey.

    >>> pipeline = Pipeline(size=16, crop_scale=(0.5, 1.0))
    >>> pipeline(torch.rand(4, 3, 32, 32), torch.rand(4, pipeline.draws)).shape
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
        for name in ("size", "num_crops"):
            _check(name, getattr(self, name), "a whole number of at least 1", 1, whole=True)
        for name in ("flip", "jitter", "grey", "blur", "solarize"):
            _check(name, getattr(self, name), "a probability between 0 and 1", 0, 1)
        for name in ("brightness", "contrast", "saturation", "rotate"):
            _check(name, getattr(self, name), "a number of at least 0", 0)
        _check("hue", self.hue, "a number between 0 and 0.5", 0, 0.5)
        _check("solarize_threshold", self.solarize_threshold, "a number between 0 and 1", 0, 1)
        for name, largest in (("crop_scale", 1.0), ("crop_ratio", None), ("blur_sigma", None)):
            # A YAML list arrives as a list type of its own; a tuple keeps this object hashable.
            object.__setattr__(self, name, _check_range(name, getattr(self, name), largest))

    @property
    def draws(self) -> int:
        """Uniform numbers that one view of one sample takes; the same for every pipeline."""
        return DRAWS

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
        low, high = torch.tensor([*limits, (-self.hue, self.hue)], dtype=torch.float64).T
        return Parameters(
            boxes=self.boxes(u, height, width),
            flip=u[:, _FLIP] < self.flip,
            angle=self.rotate * (2 * u[:, _ROTATE] - 1),
            jitter=u[:, _JITTER] < self.jitter,
            factors=low + (high - low) * u[:, _FACTORS : _FACTORS + 4],
            order=_ORDERS[(u[:, _ORDER] * len(_ORDERS)).long()],
            grey=u[:, _GREY] < self.grey,
            blur=u[:, _BLUR] < self.blur,
            sigma=self.blur_sigma[0] + (self.blur_sigma[1] - self.blur_sigma[0]) * u[:, _SIGMA],
            solarize=u[:, _SOLARIZE] < self.solarize,
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
    >>> tables = views.tables(5, seed=0, epoch=3)
    >>> views.view(torch.rand(5, 3, 32, 32), 7, tables[7]).shape
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

    def tables(self, n: int, seed: int, epoch: int) -> list[Tensor]:
        """For each view an ``(n, draws)`` table of uniforms; row ``i`` belongs to sample ``i``."""
        return [
            torch.rand(n, pipeline.draws, generator=generator(seed, epoch, view))
            for view, pipeline in enumerate(self._pipeline_of)
        ]

    def rows(self, samples: Sequence[int], seed: int, epoch: int) -> list[Tensor]:
        """For each view the uniforms of these samples, without a table of all of them.

        They are others than those of `tables`, from another generator.
        """
        return [
            random_rows(samples, seed, epoch, view, "rows")
            for view in range(len(self._pipeline_of))
        ]

    def pipeline(self, index: int) -> Pipeline:
        """The pipeline that makes view number ``index``."""
        return self._pipeline_of[index]

    def view(self, x: Tensor, index: int, u: Tensor) -> Tensor:
        """View number ``index`` of the images ``x``, whose rows of that view's table are ``u``."""
        return self._pipeline_of[index](x, u)


def _like(x: Tensor, values: Tensor) -> Tensor:
    """Host ``values`` with the device and dtype of ``x``, without waiting for the device."""
    return values.to(x.dtype).to(x.device, non_blocking=True)


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


def _check(
    name: str,
    value: float,
    allowed: str,
    low: float,
    high: float = math.inf,
    whole: bool = False,
) -> None:
    kind = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kind) or not low <= value <= high:
        raise ValueError(f"{name}={value!r} is not allowed: give {allowed}")


def _check_range(name: str, value: Sequence[float], largest: float | None) -> tuple[float, float]:
    try:
        low, high = (float(v) for v in value)
    except (TypeError, ValueError):
        low, high = math.nan, math.nan
    if not 0 < low <= high <= (largest or math.inf) or math.isinf(high):
        limit = "" if largest is None else f" and at most {largest:g}"
        raise ValueError(
            f"{name}={value!r} is not allowed: give two numbers [smallest, largest] above 0{limit}"
        )
    return low, high
