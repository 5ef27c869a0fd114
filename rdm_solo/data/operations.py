"""Crop, rotate, recolour and blur a batch, with separate parameters for each sample."""

import itertools
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from rdm_solo.data.draws import LEFT, TOP, TRIES

_BRIGHTNESS, _CONTRAST, _SATURATION, _HUE = range(4)


def crop_boxes(
    u: Tensor, height: int, width: int, scale: Sequence[float], ratio: Sequence[float]
) -> Tensor:
    """Return the boxes of torchvision's ``RandomResizedCrop``, ``(n, 22)`` uniforms to ``(n, 4)``.

    Columns of the result are the integers top, left, height and width. Ten areas (shares of the
    image, uniform in ``scale``) and aspect ratios (log-uniform in ``ratio``) are tried. The first
    box that fits is placed uniformly. If none fits, the largest central box is used.

    >>> crop_boxes(torch.full((1, 22), 0.5), 32, 32, scale=(0.25, 0.25), ratio=(1.0, 1.0))
    tensor([[ 8,  8, 16, 16]])
    """
    u = u.double()
    area = height * width * (scale[0] + (scale[1] - scale[0]) * u[:, :TRIES])
    low, high = math.log(ratio[0]), math.log(ratio[1])
    aspect = (low + (high - low) * u[:, TRIES : 2 * TRIES]).exp()
    h, w = (area / aspect).sqrt().round(), (area * aspect).sqrt().round()
    fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
    first = fits.to(torch.uint8).argmax(1, keepdim=True)
    h, w = h.gather(1, first)[:, 0], w.gather(1, first)[:, 0]
    top = (u[:, TOP] * (height - h + 1)).floor()
    left = (u[:, LEFT] * (width - w + 1)).floor()
    box = torch.stack((top, left, h, w), 1)
    if bool(fits.any(1).all()):
        return box.long()

    h_max, w_max = min(height, round(width / ratio[0])), min(width, round(height * ratio[1]))
    centred = [(height - h_max) // 2, (width - w_max) // 2, h_max, w_max]
    fallback = torch.tensor(centred, dtype=torch.float64)
    return torch.where(fits.any(1, keepdim=True), box, fallback).long()


def crop_resize(
    x: Tensor, boxes: Tensor, size: int, flip: Tensor | None = None, angle: Tensor | None = None
) -> Tensor:
    """Crop ``boxes`` (``(n, 4)``: top, left, height, width) from ``x`` and resize them.

    The resampling is bilinear, and no pixel outside the box contributes. ``flip`` (``(n,)``, bool)
    mirrors left and right. ``angle`` (``(n,)``, radians) then rotates counter-clockwise about the
    centre, and corners outside the crop repeat its edge. Images with a side above ``size`` are
    first resized with antialiasing, as in torchvision.

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

    top, left, height, width = match(x, boxes).view(-1, 4, 1, 1).unbind(1)
    pos = torch.arange(size, device=x.device, dtype=x.dtype) - (size - 1) / 2
    dx, dy = pos.view(1, 1, -1), pos.view(1, -1, 1)
    if angle is not None:
        cos, sin = (match(x, part).view(-1, 1, 1) for part in (angle.cos(), angle.sin()))
        dx, dy = dx * cos - dy * sin, dx * sin + dy * cos
    if flip is not None:
        dx = dx * match(x, 1 - 2 * flip.long()).view(-1, 1, 1)
    across = _grid_coordinate(dx, left, width, size, x.shape[-1])
    down = _grid_coordinate(dy, top, height, size, x.shape[-2])
    grid = torch.stack((across.expand(-1, size, size), down.expand(-1, size, size)), -1)
    return F.grid_sample(x, grid, padding_mode="border", align_corners=False)


def _grid_coordinate(offset: Tensor, start: Tensor, length: Tensor, size: int, full: int) -> Tensor:
    """Return the ``grid_sample`` coordinate of pixels at an ``offset`` from the box's centre."""
    at = (offset + size / 2) * (length / size) + start
    return at.maximum(start + 0.5).minimum(start + length - 0.5) * (2 / full) - 1


def _shrink(x: Tensor, boxes: Tensor, size: int, flip: Tensor | None) -> Tensor:
    """Crop and resize, axis by axis, with a triangle filter scaled by the reduction factor."""
    n, c, height, width = x.shape
    top, left, h, w = match(x, boxes).view(-1, 4, 1, 1).unbind(1)
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
    """Return indices and weights, each ``(n, size)``, of the filter's taps along one axis."""
    start, length = start[:, 0], length[:, 0]
    pos = torch.arange(size, device=start.device).expand(len(start), size)
    if flip is not None:
        pos = torch.where(flip.to(pos.device, non_blocking=True)[:, None], size - 1 - pos, pos)
    stride = length / size
    support = stride.clamp_min(1)
    centre = (pos + 0.5) * stride
    first = (centre - support + 0.5).floor()
    # As many taps as the largest possible box needs, so that no sample depends on its batch.
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


def match(x: Tensor, values: Tensor) -> Tensor:
    """Move host ``values`` to the device and dtype of ``x``, without waiting for the device."""
    return values.to(x.dtype).to(x.device, non_blocking=True)


def luma(x: Tensor) -> Tensor:
    """Return the grey value of RGB images, ``(n, 3, H, W)`` to ``(n, 1, H, W)``.

    >>> luma(torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1)).item()  # doctest: +ELLIPSIS
    0.298...
    """
    r, g, b = x[:, 0:1], x[:, 1:2], x[:, 2:3]
    return (r * 0.2989).add_(g * 0.587).add_(b * 0.114)


def blend(x: Tensor, operation: Tensor, factor: Tensor) -> Tensor:
    """Change brightness (0), contrast (1) or saturation (2) per sample, **in place**.

    All three are ``clamp(factor * x + (1 - factor) * reference, 0, 1)``; the reference is black,
    the image's mean grey value, or its grey version. ``operation`` and ``factor`` are ``(n,)``.

    >>> x = torch.full((2, 3, 1, 1), 0.5)
    >>> blend(x, torch.tensor([0, 1]), torch.tensor([1.5, 1.5]))[:, 0, 0, 0]
    tensor([0.7500, 0.5000])
    """
    operations = set(operation.tolist())
    if operations == {_BRIGHTNESS}:
        return x.mul_(match(x, factor).view(-1, 1, 1, 1)).clamp_(0, 1)
    contrast, saturation, factor = (
        match(x, column).view(-1, 1, 1, 1)
        for column in (operation == _CONTRAST, operation == _SATURATION, factor)
    )
    rest = 1 - factor
    grey = luma(x) if x.shape[1] == 3 else x
    reference = x.new_zeros(())
    if _CONTRAST in operations:
        # In float64, so that the bits of a sample's mean do not depend on its batch.
        mean = grey.sum((1, 2, 3), keepdim=True, dtype=torch.float64) / grey[0].numel()
        reference = mean.to(x.dtype) * (rest * contrast)
    if _SATURATION in operations:
        reference = (grey * (rest * saturation)).add_(reference)
    return x.mul_(factor).add_(reference).clamp_(0, 1)


def shift_hue(x: Tensor, shift: Tensor) -> Tensor:
    """Turn the hue of RGB images by ``shift`` (``(n,)``, in turns), per sample and **in place**.

    The largest and the smallest channel value stay the same, as in HSV.

    >>> shift_hue(torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1), torch.tensor([1 / 3])).flatten()
    tensor([0., 1., 0.])
    """
    r, g, b = x.unbind(1)
    high, low = torch.maximum(g, b), torch.minimum(g, b)
    top, bottom = torch.maximum(r, high), torch.minimum(r, low)
    delta = top - bottom
    # Distance from red in sixths of a turn, 0 to 3: (high - low)/delta in red's sector, otherwise
    # 2 + (low - r)/delta. One expression for both takes a third of torch.where's time.
    hue = (low - r).relu_().add_(high).sub_(r).div_(delta.clamp_min(1e-30)).add_(1)
    hue = hue.copysign_(g - b).add_(6 * match(x, shift).view(-1, 1, 1))
    hue.sub_((hue / 6).floor_().mul_(6))
    # Red is largest at hues 0 and 6, green at 2 and blue at 4.
    centre = torch.tensor([3.0, 2.0, 4.0]).view(3, 1, 1)
    part = (hue[:, None] - match(x, centre)).abs_().sub_(1).clamp_(0, 1).mul_(delta[:, None])
    torch.add(bottom, part[:, 0], out=r)
    torch.sub(top[:, None], part[:, 1:], out=x[:, 1:])
    return x


def color_jitter(x: Tensor, factors: Tensor, order: Tensor) -> Tensor:
    """Change brightness, contrast, saturation and hue, each sample in its own order.

    ``factors`` (``(n, 4)``) has a column for each operation in that order. ``order[i, k]``
    (``(n, 4)``) is the ``k``-th operation (0 to 3) of sample ``i``. Both are on the CPU. Saturation
    and hue apply to RGB images only.

    >>> factors = torch.tensor([[0.5, 2.0, 1.0, 0.0]]).expand(2, 4)
    >>> order = torch.tensor([[0, 1, 2, 3], [1, 0, 2, 3]])
    >>> x = torch.tensor([0.0, 0.8]).view(1, 1, 1, 2).expand(2, 3, 1, 2)
    >>> color_jitter(x, factors, order)[:, 0, 0]
    tensor([[0.0000, 0.6000],
            [0.0000, 0.5000]])
    """
    operations = [_BRIGHTNESS, _CONTRAST] + [_SATURATION] * (x.shape[1] == 3)
    blends = torch.isin(order, torch.tensor(operations))
    # Samples are sorted by the number of blends before their hue shift, so that samples whose hue
    # shifts at the same stage form a slice.
    hue_stage = (blends.long().cumsum(1) * (order == _HUE)).sum(1)
    by_stage = hue_stage.argsort(stable=True)
    indices = by_stage.to(x.device, non_blocking=True)
    x, factors = x.index_select(0, indices), factors[by_stage]
    stages = order[blends].view(-1, len(operations))[by_stage]
    ends = torch.bincount(hue_stage, minlength=len(operations) + 1).cumsum(0).tolist()
    shifts_hue = x.shape[1] == 3 and bool((factors[:, _HUE] != 0).any())
    for stage, (low, high) in enumerate(itertools.pairwise([0, *ends])):
        if shifts_hue and high > low:
            shift_hue(x[low:high], factors[low:high, _HUE])
        if stage < len(operations):
            operation = stages[:, stage]
            blend(x, operation, factors.gather(1, operation[:, None])[:, 0])
    return torch.empty_like(x).index_copy_(0, indices, x)


def blur(x: Tensor, sigma: Tensor, radius: int) -> Tensor:
    """Blur ``x`` (``(n, C, H, W)``) by Gaussians, with a ``sigma`` (``(n,)``) for each sample.

    The kernel extends ``radius`` pixels, less than the image's side; edges are reflected.

    >>> x = torch.zeros(1, 1, 5, 5)
    >>> x[0, 0, 2] = 1
    >>> blur(x, torch.tensor([0.5]), 1)[0, 0, :, 2]
    tensor([0.0000, 0.1065, 0.7870, 0.1065, 0.0000])
    """
    k = torch.arange(radius + 1, dtype=torch.float64)
    sigma = sigma.double().cpu()
    order = sigma.argsort(descending=True, stable=True)
    kernel = (-0.5 * (k / sigma[order, None]) ** 2).exp()
    # Taps below float32's resolution are left out. The widest kernels come first.
    reached = [n for n in (kernel > 1e-8).sum(0).tolist() if n]
    kernel = match(x, kernel / (2 * kernel.sum(1, keepdim=True) - 1)).view(-1, radius + 1, 1, 1, 1)
    indices = order.to(x.device, non_blocking=True)
    x = x.index_select(0, indices)
    margin = len(reached) - 1
    for axis, margins in ((3, (margin, margin, 0, 0)), (2, (0, 0, margin, margin))):
        wide = F.pad(x, margins, mode="reflect") if margin else x
        x, pair, side = x * kernel[:, 0], torch.empty_like(x), x.shape[axis]
        for j, n in enumerate(reached[1:], 1):
            ends = (wide[:n].narrow(axis, margin + at, side) for at in (-j, j))
            x[:n] += torch.add(*ends, out=pair[:n]).mul_(kernel[:n, j])
    return torch.empty_like(x).index_copy_(0, indices, x)


def solarize(x: Tensor, threshold: float) -> Tensor:
    """Invert every value that is at least ``threshold``.

    >>> solarize(torch.tensor([0.25, 0.75]), 0.5)
    tensor([0.2500, 0.2500])
    """
    return torch.where(x >= threshold, 1 - x, x)
