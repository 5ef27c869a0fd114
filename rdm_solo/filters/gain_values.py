"""What a filter multiplies each singular value by: its function's values, kept in range."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from rdm_solo.filters.decomposition import Spectrum
from rdm_solo.filters.functions import label, number, real_values
from rdm_solo.messages import UserError

# The largest gain, so that W and the gradients that it multiplies stay in range.
STEEPEST = {torch.float64: 2.0**960, torch.float32: 1e32}


def evaluate(spectrum: Spectrum, function: Callable[[Tensor], Tensor]) -> Tensor:
    r"""``g(sigma)`` as the function returns it, with no gradient to what it was computed from; zero
    for rounding noise.

    On a device, a function that :func:`rdm_solo.filters.get` has found to look at each value by
    itself gets all of sigma. Any other gets the values above noise alone, as on a CPU; the host
    then waits until the device knows how many they are. Shapes: ``-> (r,)``.
    """
    sigma, kept = spectrum.sigma, spectrum.kept
    if sigma.device.type == "cpu":
        if not len(sigma):
            return sigma
        return real_values(function(sigma.clone()), sigma, label(function)).detach()
    if getattr(function, "of_each", False):
        gain = real_values(function(sigma.clone()), sigma, label(function)).detach()
        return torch.where(kept, gain, 0.0)
    own = sigma[kept]
    gain = torch.zeros_like(sigma)
    if len(own):
        gain[kept] = real_values(function(own.clone()), own, label(function)).detach()
    return gain


def rescale(spectrum: Spectrum, gain: Tensor) -> Tensor:
    r"""The gains, times one constant where :math:`\max |\sigma g|` is out of range.

    Losses normalise the rows and divide the constant out again. In range is 1e-4 to 1e15, of
    float16 1e-3 to 1e3, with gains up to 1e32 (float64: 2^960). Shapes: ``(r,) -> (r,)``.

    >>> from rdm_solo.filters import decompose
    >>> spectrum = decompose(torch.diag(torch.tensor([4.0, 1.0])))
    >>> rescale(spectrum, torch.full((2,), 1e-300, dtype=torch.float64))
    tensor([0.2500, 0.2500], dtype=torch.float64)
    """
    sigma = spectrum.sigma
    if not len(sigma):
        return gain
    peak, steepest = number(_largest(sigma * gain)), number(_largest(gain))
    most = STEEPEST.get(spectrum.dtype, STEEPEST[torch.float32])
    low, high = (1e-3, 1e3) if spectrum.dtype == torch.float16 else (1e-4, 1e15)
    fits = (low <= peak) & (peak <= high) & (steepest <= most)
    if fits is True:
        return gain
    fits = torch.as_tensor(fits, device=gain.device)
    # sigma * gain may leave the range of float64, where sigma / largest * gain does not.
    size, largest = _largest(gain), sigma[-1]
    small = gain / torch.where(size == 0, 1.0, size)
    peak = _largest(sigma / largest * small)
    return torch.where(fits, gain, small * (1 / peak / largest).clamp_max(most))


def gains(spectrum: Spectrum, function: Callable[[Tensor], Tensor]) -> Tensor:
    r"""``g(sigma)``, finite, in the range of :func:`rescale`; the host waits for the device.

    The function gets a copy of sigma and returns as many real numbers
    (:func:`rdm_solo.filters.get` says which). Shapes: ``-> (r,)``.

    >>> from rdm_solo.filters import decompose
    >>> gains(decompose(torch.diag(torch.tensor([4.0, 1.0]))), torch.sqrt)
    tensor([1., 2.], dtype=torch.float64)
    """
    gain = evaluate(spectrum, function)
    if not gain.isfinite().all():
        raise UserError(not_finite(function))
    return rescale(spectrum, gain)


def not_finite(function: Callable[[Tensor], Tensor]) -> str:
    """What to say of a function that returned NaN or infinity."""
    return (
        f"the filter function {label(function)!r} returned NaN or infinity for a positive "
        "singular value; it must be finite on the whole spectrum."
    )


def _largest(values: Tensor) -> Tensor:
    size: Tensor = torch.linalg.vector_norm(values, math.inf)
    return size
