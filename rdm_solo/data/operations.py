"""Crop, rotate, recolour and blur a batch, with separate parameters for each sample.

torchvision's functions, which are named below, take one set of parameters for a whole batch. These
take a row of parameters per sample and agree with torchvision to the rounding of float32.

Images ``x`` are floats in [0, 1] of shape ``(n, C, H, W)`` on any device. Parameters are on the
CPU. A sample's result is the same in every batch, to a few roundings of float32.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from rdm_solo.data.draws import LEFT, TOP, TRIES

# The jitter's operations, in the order of ``ColorJitter``'s arguments.
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)


def between(low: float | Tensor, high: float | Tensor, u: Tensor) -> Tensor:
    """Map numbers that are uniform in [0, 1) to [low, high)."""
    return low + (high - low) * u


def crop_boxes(
    u: Tensor,
    height: int,
    width: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> Tensor:
    """Return the boxes of torchvision's ``RandomResizedCrop``, ``(n, 22)`` uniforms to ``(n, 4)``.

    Columns of the result are the integers top, left, height and width. Ten areas (shares of the
    image, uniform in ``scale``) and aspect ratios (log-uniform in ``ratio``) are tried. The first
    box that fits is placed uniformly. If none fits, the largest central box is used.

    >>> crop_boxes(torch.full((1, 22), 0.5), 32, 32, scale=(0.25, 0.25), ratio=(1.0, 1.0))
    tensor([[ 8,  8, 16, 16]])
    """
    u = u.double()
    shares = between(*scale, u[:, :TRIES])
    areas = height * width * shares
    log_low, log_high = map(math.log, ratio)
    u_aspects = u[:, TRIES : 2 * TRIES]
    log_aspects = between(log_low, log_high, u_aspects)
    aspects = log_aspects.exp()
    squares = torch.stack((areas / aspects, areas * aspects), 2)
    sizes = squares.sqrt().round()  # heights and widths, (n, TRIES, 2)
    image = torch.tensor([height, width])
    fits = (sizes > 0) & (sizes <= image)
    fits = fits.all(2)
    # argmax returns the first of equal values, so the first box that fits.
    first = fits.byte().argmax(1)
    size = sizes[torch.arange(len(u)), first]
    places = image - size + 1  # of the top left corner
    corner = u[:, TOP : LEFT + 1] * places
    boxes = torch.cat((corner, size), 1)

    # torchvision's fallback after ten tries.
    largest_height = min(height, round(width / ratio[0]))
    largest_width = min(width, round(height * ratio[1]))
    central_top = (height - largest_height) // 2
    central_left = (width - largest_width) // 2
    central = torch.tensor([central_top, central_left, largest_height, largest_width])
    any_fits = fits.any(1, keepdim=True)
    return torch.where(any_fits, boxes.long(), central)


def crop_resize(
    x: Tensor,
    boxes: Tensor,
    size: int,
    angle: Tensor | None = None,
) -> Tensor:
    """Crop ``boxes`` (``(n, 4)``: top, left, height, width) and resize, as ``resized_crop`` does.

    The resampling is bilinear, and no pixel outside the box contributes. ``angle`` (``(n,)``) then
    rotates as `rotate` does. As in torchvision, only downsampling is antialiased: images with a
    side above ``size`` are resized with a triangle filter, and rotated by a second resampling.

    >>> x = torch.arange(16.0).view(1, 1, 4, 4)
    >>> crop_resize(x, torch.tensor([[1, 1, 2, 2]]), 2)
    tensor([[[[ 5.,  6.],
              [ 9., 10.]]]])
    """
    rows, columns = x.shape[2:]
    if max(rows, columns) > size:
        # Weighted means of rows and of columns. TF32 and autocast leave float64 as it is.
        pixels = x.double()
        boxes = match(pixels, boxes)
        boxes = boxes[..., None, None, None]
        top, left, height, width = boxes.unbind(1)
        row_weights = _triangles(top, height, size, rows)
        column_weights = _triangles(left, width, size, columns)
        resized = row_weights @ pixels @ column_weights.mT
        x = resized.to(x.dtype)
        if angle is not None:
            x = rotate(x, angle)
        return x

    # One resampling does all three. Offsets are from the view's centre, in pixels of the view.
    dx = torch.arange(size, device=x.device, dtype=x.dtype)
    dx = dx - (size - 1) / 2
    dy = dx[:, None]
    if angle is not None:
        turn = torch.stack((angle.cos(), angle.sin()))
        cos, sin = match(x, turn)[..., None, None]
        rotated_dx = dx * cos - dy * sin
        dy = dx * sin + dy * cos
        dx = rotated_dx
    boxes = match(x, boxes)
    boxes = boxes[..., None, None]
    top, left, height, width = boxes.unbind(1)
    across = _grid_coordinates(dx, left, width, size, columns)
    down = _grid_coordinates(dy, top, height, size, rows)
    across = across.expand(-1, size, size)
    down = down.expand(-1, size, size)
    grid = torch.stack((across, down), dim=-1)
    return F.grid_sample(x, grid, padding_mode="border", align_corners=False)


def rotate(x: Tensor, angle: Tensor) -> Tensor:
    """Rotate square images counter-clockwise about their centres by ``angle`` (``(n,)``, radians).

    This is ``rotate`` with bilinear resampling, but corners repeat the edge instead of being black.
    """
    size = x.shape[3]
    boxes = torch.tensor([[0, 0, size, size]])
    return crop_resize(x, boxes, size, angle)


def _grid_coordinates(
    offset: Tensor,
    start: Tensor,
    length: Tensor,
    size: int,
    side: int,
) -> Tensor:
    """Return where ``grid_sample`` reads along an axis: pixels of the box, scaled to [-1, 1]."""
    stride = length / size
    pixel = (offset + size / 2) * stride + start
    # Beyond the centres of the outermost pixels, resampling would mix in pixels outside the box.
    first = start + 0.5
    last = start + length - 0.5
    pixel = pixel.maximum(first)
    pixel = pixel.minimum(last)
    return pixel * (2 / side) - 1


def _triangles(
    start: Tensor,
    length: Tensor,
    size: int,
    side: int,
) -> Tensor:
    """Return how much each of ``side`` pixels weighs in each of ``size`` pixels of the view.

    A triangle is as many times wider than a pixel as the box is longer than the view, and pixels
    outside the box weigh nothing. ``start`` and ``length`` are ``(n, 1, 1, 1)``, the result is
    ``(n, 1, size, side)``.
    """
    stride = length / size
    offsets = torch.arange(size, device=start.device) + 0.5
    centres = start + stride * offsets[:, None]
    pixels = torch.arange(side, device=start.device) + 0.5
    distances = pixels - centres
    distances = distances.abs()
    weights = 1 - distances / stride.clamp_min(1)
    weights = weights.clamp_min(0)
    weights = weights * (pixels > start)
    weights = weights * (pixels < start + length)
    return weights / weights.sum(-1, keepdim=True)


def match(x: Tensor, values: Tensor) -> Tensor:
    """Move host ``values`` to the device and dtype of ``x``, without waiting for the device."""
    values = values.to(x.dtype)
    return values.to(x.device, non_blocking=True)


def apply_where(
    mask: Tensor,
    operation: Callable[..., Tensor],
    x: Tensor,
    *columns: Tensor,
) -> Tensor:
    """Apply an operation to the rows in ``mask``, which is on the CPU, **in place**.

    ``columns`` are the operation's further arguments, a row per sample. A result with one
    channel is copied to all channels.
    """
    rows = mask.nonzero()[:, 0]
    if len(rows) == 0:
        return x
    indices = rows.to(x.device, non_blocking=True)
    selected = [column[rows] for column in columns]
    before = x.index_select(0, indices)
    after = operation(before, *selected)
    return x.index_copy_(0, indices, after.expand_as(before))


def luma(x: Tensor) -> Tensor:
    """Return the grey value of RGB images as ``rgb_to_grayscale`` does, of shape ``(n, 1, H, W)``.

    >>> luma(torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1)).item()  # doctest: +ELLIPSIS
    0.298...
    """
    red, green, blue = torch.split(x, 1, dim=1)
    grey = 0.2989 * red
    grey.add_(0.587 * green)
    return grey.add_(0.114 * blue)


def _blend(
    x: Tensor,
    factor: Tensor,
    mean_share: Tensor,
    grey_share: Tensor,
) -> Tensor:
    """Change brightness, contrast or saturation per sample, **in place**.

    ``adjust_brightness``, ``adjust_contrast`` and ``adjust_saturation`` are all
    ``clamp(factor * x + (1 - factor) * reference, 0, 1)``. The reference is black, the image's mean
    grey value, or its grey version. ``mean_share`` is ``1 - factor`` where contrast changes and 0
    elsewhere, and ``grey_share`` is ``1 - factor`` where saturation changes.
    """
    grey = x
    if x.shape[1] == 3:
        grey = luma(x)
    # In float64, so that a sample's mean hardly depends on how its batch is summed.
    total = grey.sum((1, 2, 3), keepdim=True, dtype=torch.float64)
    mean = total / grey[0].numel()
    mean = mean.to(x.dtype)
    reference = grey * grey_share
    reference.add_(mean * mean_share)
    x.mul_(factor)
    x.add_(reference)
    return x.clamp_(0, 1)


def shift_hue(x: Tensor, shift: Tensor) -> Tensor:
    """Turn the hue of RGB images by ``shift`` (``(n,)``, in turns), per sample and **in place**.

    As in ``adjust_hue``, the largest and the smallest channel value stay the same. ``shift`` is on
    the device of ``x``.

    >>> shift_hue(torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1), torch.tensor([1 / 3])).flatten()
    tensor([0., 1., 0.])
    """
    red, green, blue = x.unbind(1)
    high = torch.maximum(green, blue)
    low = torch.minimum(green, blue)
    bottom = torch.minimum(red, low)
    top = torch.maximum(red, high)
    delta = top - bottom

    # The distance from red in sixths of a turn, from 0 to 3, is
    #   (high - low) / delta        where red is the largest channel,
    #   2 + (low - red) / delta     elsewhere.
    # Both equal (relu(low - red) + high - red) / delta + 1, which takes a third of the time of
    # torch.where. Towards blue the distance is negative.
    hue = (low - red).relu_()
    hue.add_(high)
    hue.sub_(red)
    hue.div_(delta.clamp_min(1e-30))
    hue.add_(1)
    hue.copysign_(green - blue)
    sixths = 6 * shift
    hue.add_(sixths[:, None, None])
    turns = hue / 6
    turns.floor_()
    hue.sub_(6 * turns)

    # A channel is at the top within one sixth of its own hue and at the bottom from two sixths on.
    # Red is largest at hues 0 and 6, green at 2 and blue at 4. Red is measured from its opposite.
    centres = match(x, torch.tensor([3.0, 2.0, 4.0]))
    parts = hue[:, None] - centres[:, None, None]
    parts.abs_()
    parts.sub_(1)
    parts.clamp_(0, 1)
    parts.mul_(delta[:, None])
    x[:, 0] = bottom + parts[:, 0]
    x[:, 1:] = top[:, None] - parts[:, 1:]
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
    blends_per_sample = 2
    rgb = x.shape[1] == 3
    if rgb:
        blends_per_sample = 3
    # All samples take their first blend together, then their second, and so on, since one formula
    # covers the three. The costly hue shift comes before the first blend of some samples and after
    # the third of others. Sorted by that number, samples that shift at the same time are a slice.
    stage_of_hue = order.argmax(1)  # HUE is the largest number
    by_stage = stage_of_hue.argsort(stable=True)
    ends = stage_of_hue.bincount(minlength=4).cumsum(0)
    order = order[by_stage]
    factors = factors[by_stage].to(x.dtype)
    shifts_hue = rgb and bool(factors[:, HUE].any())
    shifts = match(x, factors[:, HUE])

    blends = order[order < blends_per_sample]
    blends = blends.view(-1, blends_per_sample)
    factor = factors.gather(1, blends)
    rest = 1 - factor
    mean_share = rest * (blends == CONTRAST)
    grey_share = rest * (blends == SATURATION)
    shares = torch.stack((factor, mean_share, grey_share), dim=1)
    shares = match(x, shares)
    shares = shares[..., None, None, None]

    indices = by_stage.to(x.device, non_blocking=True)
    x = x.index_select(0, indices)
    low = 0
    for stage, high in enumerate(ends.tolist()):
        if shifts_hue and low < high:
            rows = slice(low, high)
            shift_hue(x[rows], shifts[rows])
        if stage < blends_per_sample:
            stage_shares = shares[:, :, stage]
            _blend(x, *stage_shares.unbind(1))
        low = high
    return torch.empty_like(x).index_copy_(0, indices, x)


def blur(x: Tensor, sigma: Tensor, radius: int) -> Tensor:
    """Blur as ``gaussian_blur`` does, with a standard deviation ``sigma`` (``(n,)``) per sample.

    The kernel extends ``radius`` pixels, less than the image's side; edges are reflected.

    >>> x = torch.zeros(1, 1, 5, 5)
    >>> x[0, 0, 2] = 1
    >>> blur(x, torch.tensor([0.5]), 1)[0, 0, :, 2]
    tensor([0.0000, 0.1065, 0.7870, 0.1065, 0.0000])
    """
    # A row of weights is one half of a kernel, from its centre to the distance ``radius``.
    distances = torch.arange(radius + 1, dtype=torch.float64)
    sigma = sigma.double()[:, None]
    scaled = distances / sigma
    weights = (-0.5 * scaled**2).exp()
    total = 2 * weights.sum(1, keepdim=True) - 1
    # Weights below float32's resolution are left out.
    weights = weights * (weights > 1e-8)
    weights = match(x, weights / total)
    weights = weights[..., None, None, None]
    centre, *others = weights.unbind(1)

    left_and_right = (radius, radius, 0, 0)
    above_and_below = (0, 0, radius, radius)
    for axis, margins in ((3, left_and_right), (2, above_and_below)):
        side = x.shape[axis]
        padded = F.pad(x, margins, mode="reflect")
        x = x * centre
        for distance, weight in enumerate(others, start=1):
            before = padded.narrow(axis, radius - distance, side)
            after = padded.narrow(axis, radius + distance, side)
            both_sides = before + after
            both_sides.mul_(weight)
            x += both_sides
    return x


def solarize(x: Tensor) -> Tensor:
    """Invert every value from 0.5 on, as torchvision's ``solarize`` does.

    >>> solarize(torch.tensor([0.25, 0.75]))
    tensor([0.2500, 0.2500])
    """
    return torch.where(x >= 0.5, 1 - x, x)
