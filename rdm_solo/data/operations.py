"""Crop, rotate, recolour and blur a batch, with separate parameters for each sample.

torchvision's functions, which are named below, take one set of parameters for a whole batch. These
take a row of parameters per sample and agree with torchvision to the rounding of float32.

Images ``x`` are floats in [0, 1] of shape ``(n, C, H, W)`` on any device. Parameters are on the
CPU. A sample's result has the same bits in every batch.
"""

import itertools
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from rdm_solo.data.draws import LEFT, TOP, TRIES

# The jitter's operations, in the order of ``ColorJitter``'s arguments.
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
    low, high = scale
    share = low + (high - low) * u[:, :TRIES]
    area = height * width * share
    low, high = math.log(ratio[0]), math.log(ratio[1])
    log_aspect = low + (high - low) * u[:, TRIES : 2 * TRIES]
    aspect = log_aspect.exp()
    h = (area / aspect).sqrt().round()
    w = (area * aspect).sqrt().round()
    h_fits = (h > 0) & (h <= height)
    w_fits = (w > 0) & (w <= width)
    fits = h_fits & w_fits
    # argmax returns the first of equal values, so the first box that fits.
    first = fits.byte().argmax(1, keepdim=True)
    h = h.gather(1, first)
    w = w.gather(1, first)
    y = (u[:, TOP, None] * (height - h + 1)).floor()
    x = (u[:, LEFT, None] * (width - w + 1)).floor()
    boxes = torch.cat((y, x, h, w), 1)

    # torchvision's fallback after ten tries.
    largest_h = min(height, round(width / ratio[0]))
    largest_w = min(width, round(height * ratio[1]))
    top = (height - largest_h) // 2
    left = (width - largest_w) // 2
    central = torch.tensor([top, left, largest_h, largest_w])
    return torch.where(fits.any(1, keepdim=True), boxes.long(), central)


def crop_resize(x: Tensor, boxes: Tensor, size: int, angle: Tensor | None = None) -> Tensor:
    """Crop ``boxes`` (``(n, 4)``: top, left, height, width) and resize, as ``resized_crop`` does.

    The resampling is bilinear, and no pixel outside the box contributes. ``angle`` (``(n,)``) then
    rotates as `rotate` does. As in torchvision, only downsampling is antialiased: images with a
    side above ``size`` are resized with a triangle filter.

    >>> x = torch.arange(16.0).view(1, 1, 4, 4)
    >>> crop_resize(x, torch.tensor([[1, 1, 2, 2]]), 2)
    tensor([[[[ 5.,  6.],
              [ 9., 10.]]]])
    """
    if max(x.shape[2:]) <= size:
        return _sample(x, boxes, size, angle)
    top, left, height, width = match(x, boxes)[:, :, None].unbind(1)
    x = _shrink_rows(x, top, height, size)
    x = _shrink_rows(x.mT, left, width, size).mT.contiguous()
    return x if angle is None else rotate(x, angle)


def rotate(x: Tensor, angle: Tensor) -> Tensor:
    """Rotate square images counter-clockwise about their centres by ``angle`` (``(n,)``, radians).

    This is ``rotate`` with bilinear resampling, but corners repeat the edge instead of being black.
    """
    size = x.shape[3]
    everything = torch.tensor([[0, 0, size, size]]).expand(len(x), 4)
    return _sample(x, everything, size, angle)


def _sample(x: Tensor, boxes: Tensor, size: int, angle: Tensor | None) -> Tensor:
    """Crop, resize without antialiasing and rotate in a single bilinear resampling."""
    top, left, height, width = match(x, boxes)[:, :, None, None].unbind(1)
    # Offsets from the view's centre in pixels of the view, (1, 1, size) and (1, size, 1).
    offset = torch.arange(size, device=x.device, dtype=x.dtype) - (size - 1) / 2
    x_offset = offset[None, None]
    y_offset = offset[None, :, None]
    if angle is not None:
        cos = match(x, angle.cos())[:, None, None]
        sin = match(x, angle.sin())[:, None, None]
        dx, dy = x_offset, y_offset
        x_offset = dx * cos - dy * sin
        y_offset = dx * sin + dy * cos
    across = _grid_coordinate(x_offset, left, width, size, x.shape[3])
    down = _grid_coordinate(y_offset, top, height, size, x.shape[2])
    across, down = across.expand(-1, size, size), down.expand(-1, size, size)
    grid = torch.stack((across, down), -1)
    return F.grid_sample(x, grid, padding_mode="border", align_corners=False)


def _grid_coordinate(offset: Tensor, start: Tensor, length: Tensor, size: int, full: int) -> Tensor:
    """Return where ``grid_sample`` reads along an axis: pixels of the box, scaled to [-1, 1]."""
    pixel = (offset + size / 2) * (length / size) + start
    # Beyond the centres of the outermost pixels, resampling would mix in pixels outside the box.
    pixel = pixel.maximum(start + 0.5).minimum(start + length - 0.5)
    return pixel * (2 / full) - 1


def _shrink_rows(x: Tensor, start: Tensor, length: Tensor, size: int) -> Tensor:
    """Crop and resize the height with antialiasing, ``(n, C, H, W)`` to ``(n, C, size, W)``.

    ``start`` and ``length`` are ``(n, 1)``. A new row is a weighted mean of rows, with the weights
    of a triangle that is as many times wider than a pixel as the box is higher than the view.
    """
    n, c, height, width = x.shape
    stride = length / size
    support = stride.clamp_min(1)
    centre = (torch.arange(size, device=x.device) + 0.5) * stride
    # As many rows as the highest possible box needs, so that no sample depends on its batch.
    taps = math.ceil(2 * max(1.0, height / size))
    first = (centre - support + 0.5).floor()
    row = first + torch.arange(taps, device=x.device)[:, None, None]  # (taps, n, size)
    distance = (row + 0.5 - centre).abs()
    weight = (1 - distance / support).clamp_min(0)
    inside = (row >= 0) & (row < length)
    weight = weight * inside
    # A cumulative sum adds in order, where a sum's order depends on the shape.
    weight = weight / weight.cumsum(0)[-1]
    row = (row.clamp_min(0).minimum(length - 1) + start).long()

    # Rows of all images as one matrix: index_select copies a row at once, gather an element.
    rows = x.reshape(n * c * height, width)
    first_row = height * torch.arange(n * c, device=x.device).view(n, c, 1)
    shrunk = x.new_zeros(())
    for row_of_tap, weight_of_tap in zip(row, weight):
        index = (first_row + row_of_tap[:, None]).flatten()
        picked = rows.index_select(0, index).view(n, c, size, width)
        shrunk = shrunk + picked * weight_of_tap[:, None, :, None]
    return shrunk


def match(x: Tensor, values: Tensor) -> Tensor:
    """Move host ``values`` to the device and dtype of ``x``, without waiting for the device."""
    return values.to(x.dtype).to(x.device, non_blocking=True)


def luma(x: Tensor) -> Tensor:
    """Return the grey value of RGB images as ``rgb_to_grayscale`` does, of shape ``(n, 1, H, W)``.

    >>> luma(torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1)).item()  # doctest: +ELLIPSIS
    0.298...
    """
    red, green, blue = x[:, 0:1], x[:, 1:2], x[:, 2:3]
    return (0.2989 * red).add_(0.587 * green).add_(0.114 * blue)


def blend(x: Tensor, operation: Tensor, factor: Tensor) -> Tensor:
    """Change brightness (0), contrast (1) or saturation (2) per sample, **in place**.

    ``adjust_brightness``, ``adjust_contrast`` and ``adjust_saturation`` are all
    ``clamp(factor * x + (1 - factor) * reference, 0, 1)``. The reference is black, the image's mean
    grey value, or its grey version. ``operation`` and ``factor`` are ``(n,)``.

    >>> x = torch.full((2, 3, 1, 1), 0.5)
    >>> blend(x, torch.tensor([0, 1]), torch.tensor([1.5, 1.5]))[:, 0, 0, 0]
    tensor([0.7500, 0.5000])
    """
    factor = match(x, factor).view(-1, 1, 1, 1)
    contrast = match(x, operation == _CONTRAST).view(-1, 1, 1, 1)
    saturation = match(x, operation == _SATURATION).view(-1, 1, 1, 1)
    grey = x
    if x.shape[1] == 3:
        grey = luma(x)
    # In float64, so that the bits of a sample's mean do not depend on its batch.
    total = grey.sum((1, 2, 3), keepdim=True, dtype=torch.float64)
    mean = (total / grey[0].numel()).to(x.dtype)
    rest = 1 - factor
    reference = grey * (rest * saturation)
    reference.add_(mean * (rest * contrast))
    return x.mul_(factor).add_(reference).clamp_(0, 1)


def shift_hue(x: Tensor, shift: Tensor) -> Tensor:
    """Turn the hue of RGB images by ``shift`` (``(n,)``, in turns), per sample and **in place**.

    As in ``adjust_hue``, the largest and the smallest channel value stay the same.

    >>> shift_hue(torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1), torch.tensor([1 / 3])).flatten()
    tensor([0., 1., 0.])
    """
    red, green, blue = x.unbind(1)
    high = torch.maximum(green, blue)
    low = torch.minimum(green, blue)
    top = torch.maximum(red, high)
    bottom = torch.minimum(red, low)
    delta = top - bottom

    # The distance from red in sixths of a turn, from 0 to 3, is
    #   (high - low) / delta        where red is the largest channel,
    #   2 + (low - red) / delta     elsewhere.
    # Both equal (relu(low - red) + high - red) / delta + 1, which takes a third of the time of
    # torch.where. Towards blue the distance is negative.
    hue = (low - red).relu_().add_(high).sub_(red)
    hue.div_(delta.clamp_min(1e-30)).add_(1)
    hue.copysign_(green - blue)
    hue.add_(6 * match(x, shift).view(-1, 1, 1))
    turns = (hue / 6).floor_()
    hue.sub_(turns.mul_(6))

    # A channel is at the top within one sixth of its own hue and at the bottom from two sixths on.
    # Red is largest at hues 0 and 6, green at 2 and blue at 4. Red is measured from its opposite.
    centre = match(x, torch.tensor([3.0, 2.0, 4.0])).view(3, 1, 1)
    part = (hue[:, None] - centre).abs_().sub_(1).clamp_(0, 1)
    part.mul_(delta[:, None])
    torch.add(bottom, part[:, 0], out=red)
    torch.sub(top[:, None], part[:, 1:], out=x[:, 1:])
    return x


def color_jitter(x: Tensor, factors: Tensor, order: Tensor) -> Tensor:
    """Change brightness, contrast, saturation and hue as ``ColorJitter`` does.

    ``factors`` (``(n, 4)``) has a column for each operation in that order. ``order[i, k]``
    (``(n, 4)``) is the ``k``-th operation (0 to 3) of sample ``i``. Saturation and hue apply to RGB
    images only.

    >>> factors = torch.tensor([[0.5, 2.0, 1.0, 0.0]]).expand(2, 4)
    >>> order = torch.tensor([[0, 1, 2, 3], [1, 0, 2, 3]])
    >>> x = torch.tensor([0.0, 0.8]).view(1, 1, 1, 2).expand(2, 3, 1, 2)
    >>> color_jitter(x, factors, order)[:, 0, 0]
    tensor([[0.0000, 0.6000],
            [0.0000, 0.5000]])
    """
    rgb = x.shape[1] == 3
    operations = [_BRIGHTNESS, _CONTRAST]
    if rgb:
        operations.append(_SATURATION)
    is_blend = torch.isin(order, torch.tensor(operations))
    # All samples take their first blend together, then their second, and so on, since one formula
    # covers the three. The costly hue shift comes before the first blend of some samples and after
    # the third of others. Sorted by that number, samples that shift at the same time are a slice.
    is_hue = order == _HUE
    blends_before_hue = (is_blend.cumsum(1) * is_hue).sum(1)
    by_stage = blends_before_hue.argsort(stable=True)
    ends = blends_before_hue.bincount(minlength=len(operations) + 1).cumsum(0)
    blends = order[is_blend].view(-1, len(operations))[by_stage]
    factors = factors[by_stage]
    shifts_hue = rgb and bool(factors[:, _HUE].any())
    indices = by_stage.to(x.device, non_blocking=True)
    x = x.index_select(0, indices)
    for stage, (low, high) in enumerate(itertools.pairwise([0, *ends.tolist()])):
        if shifts_hue and low < high:
            shift_hue(x[low:high], factors[low:high, _HUE])
        if stage < len(operations):
            operation = blends[:, stage]
            factor = factors.gather(1, operation[:, None])
            blend(x, operation, factor[:, 0])
    return torch.empty_like(x).index_copy_(0, indices, x)


def blur(x: Tensor, sigma: Tensor, radius: int) -> Tensor:
    """Blur as ``gaussian_blur`` does, with a standard deviation ``sigma`` (``(n,)``) per sample.

    The kernel extends ``radius`` pixels, less than the image's side; edges are reflected.

    >>> x = torch.zeros(1, 1, 5, 5)
    >>> x[0, 0, 2] = 1
    >>> blur(x, torch.tensor([0.5]), 1)[0, 0, :, 2]
    tensor([0.0000, 0.1065, 0.7870, 0.1065, 0.0000])
    """
    # Samples are sorted so that those whose kernel reaches a distance come first. A row of
    # ``kernel`` holds the weights at distances 0 to ``radius``, on either side of the centre.
    widest_first = sigma.argsort(descending=True, stable=True)
    distances = torch.arange(radius + 1, dtype=torch.float64)
    sigma = sigma.double()[widest_first, None]
    kernel = (-0.5 * (distances / sigma) ** 2).exp()
    # Weights below float32's resolution are left out: reached[k] samples have one at distance k.
    reached = (kernel > 1e-8).sum(0)
    margin = int(reached.count_nonzero()) - 1
    kernel = kernel / (2 * kernel.sum(1, keepdim=True) - 1)
    kernel = match(x, kernel).view(-1, radius + 1, 1, 1, 1)

    indices = widest_first.to(x.device, non_blocking=True)
    x = x.index_select(0, indices)
    for axis, margins in ((3, (margin, margin, 0, 0)), (2, (0, 0, margin, margin))):
        side = x.shape[axis]
        padded = F.pad(x, margins, mode="reflect")
        x = x * kernel[:, 0]
        both_sides = torch.empty_like(x)
        for k, n in enumerate(reached[1 : margin + 1].tolist(), 1):
            before = padded[:n].narrow(axis, margin - k, side)
            after = padded[:n].narrow(axis, margin + k, side)
            torch.add(before, after, out=both_sides[:n])
            x[:n] += both_sides[:n].mul_(kernel[:n, k])
    return torch.empty_like(x).index_copy_(0, indices, x)


def solarize(x: Tensor, threshold: float) -> Tensor:
    """Invert every value that is at least ``threshold``, as torchvision's ``solarize`` does.

    >>> solarize(torch.tensor([0.25, 0.75]), 0.5)
    tensor([0.2500, 0.2500])
    """
    return torch.where(x >= threshold, 1 - x, x)
