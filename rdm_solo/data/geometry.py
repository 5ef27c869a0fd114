"""Crops, resizing, flips and rotations of a batch, each sample with its own parameters."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from rdm_solo.data.draws import LEFT, TOP, TRIES


def crop_boxes(
    u: Tensor,
    height: int | Tensor,
    width: int | Tensor,
    scale: Sequence[float],
    ratio: Sequence[float],
) -> Tensor:
    """Return the boxes of torchvision's ``RandomResizedCrop``, ``(n, 22)`` uniforms to ``(n, 4)``.

    Columns of the result are the integers top, left, height and width. Ten tries of an area (a
    share of the image between ``scale``) and of an aspect ratio (log-uniform between ``ratio``);
    the first box that fits is placed uniformly, and where none fits the largest central one is
    taken. ``height`` and ``width`` are ``(n,)`` if images differ in size.

    >>> crop_boxes(torch.full((1, 22), 0.5), 32, 32, scale=(0.25, 0.25), ratio=(1.0, 1.0))
    tensor([[ 8,  8, 16, 16]])
    """
    u = u.double()
    height, width = (torch.as_tensor(side, dtype=torch.float64) for side in (height, width))
    area = (height * width).view(-1, 1) * (scale[0] + (scale[1] - scale[0]) * u[:, :TRIES])
    low, high = math.log(ratio[0]), math.log(ratio[1])
    aspect = (low + (high - low) * u[:, TRIES : 2 * TRIES]).exp()
    h, w = (area / aspect).sqrt().round(), (area * aspect).sqrt().round()
    fits = (w > 0) & (w <= width.view(-1, 1)) & (h > 0) & (h <= height.view(-1, 1))
    first = fits.to(torch.uint8).argmax(1, keepdim=True)
    h, w = h.gather(1, first)[:, 0], w.gather(1, first)[:, 0]
    top = (u[:, TOP] * (height - h + 1)).floor()
    left = (u[:, LEFT] * (width - w + 1)).floor()
    box = torch.stack((top, left, h, w), 1)
    if bool(fits.any(1).all()):
        return box.long()

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
    """Return ``grid_sample``'s coordinate of a pixel at this ``offset`` from a box's centre."""
    at = (offset + size / 2) * (length / size) + start
    return at.maximum(start + 0.5).minimum(start + length - 0.5) * (2 / full) - 1


def _shrink(x: Tensor, boxes: Tensor, size: int, flip: Tensor | None) -> Tensor:
    """Crop and resize with a triangle filter as wide as the reduction, one axis at a time."""
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
    # As many taps as the largest possible box needs, so that the batch changes nothing.
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
