"""Colour jitter, grey, blur and solarisation of a batch, each sample with its own parameters."""

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor

from rdm_solo.data.geometry import match

_BRIGHTNESS, _CONTRAST, _SATURATION, _HUE = range(4)


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
        # In float64, so that the mean has the same bits whatever the batch around the sample.
        mean = grey.sum((1, 2, 3), keepdim=True, dtype=torch.float64) / grey[0].numel()
        reference = mean.to(x.dtype) * (rest * contrast)
    if _SATURATION in operations:
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
    hue = hue.copysign_(g - b).add_(6 * match(x, shift).view(-1, 1, 1))
    hue.sub_((hue / 6).floor_().mul_(6))
    # Red falls from the top as the hue leaves 0 (and 6), the others as it leaves 2 and 4.
    centre = torch.tensor([3.0, 2.0, 4.0]).view(3, 1, 1)
    part = (hue[:, None] - match(x, centre)).abs_().sub_(1).clamp_(0, 1).mul_(delta[:, None])
    torch.add(bottom, part[:, 0], out=r)
    torch.sub(top[:, None], part[:, 1:], out=x[:, 1:])
    return x


def color_jitter(x: Tensor, factors: Tensor, order: Tensor) -> Tensor:
    """Change brightness, contrast, saturation and hue, each sample in its own order.

    ``factors`` is ``(n, 4)`` in that order of operations; ``order`` is ``(n, 4)``, and
    ``order[i, k]`` the operation (0 to 3) that sample ``i`` undergoes as its ``k``-th. Both live on
    the CPU. Saturation and hue apply to RGB images only.

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
    """Blur ``x`` (``(n, C, H, W)``) by Gaussians, with a ``sigma`` (``(n,)``) for each sample.

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
    reached = [n for n in (kernel > 1e-8).sum(0).tolist() if n]
    kernel = match(x, kernel / (2 * kernel.sum(1, keepdim=True) - 1)).view(-1, radius + 1, 1, 1, 1)
    place = order.to(x.device, non_blocking=True)
    x = x.index_select(0, place)
    margin = len(reached) - 1
    for axis, margins in ((3, (margin, margin, 0, 0)), (2, (0, 0, margin, margin))):
        wide = F.pad(x, margins, mode="reflect") if margin else x
        x, pair, side = x * kernel[:, 0], torch.empty_like(x), x.shape[axis]
        for j, n in enumerate(reached[1:], 1):
            ends = (wide[:n].narrow(axis, margin + at, side) for at in (-j, j))
            x[:n] += torch.add(*ends, out=pair[:n]).mul_(kernel[:n, j])
    return torch.empty_like(x).index_copy_(0, place, x)


def solarize(x: Tensor, threshold: float) -> Tensor:
    """Invert every value that is at least ``threshold``.

    >>> solarize(torch.tensor([0.25, 0.75]), 0.5)
    tensor([0.2500, 0.2500])
    """
    return torch.where(x >= threshold, 1 - x, x)
