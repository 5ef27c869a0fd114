"""A filter's effect on a spectrum: its kind on each branch, both ranks, and warnings."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from rdm_solo.filters.functions import BoundFunction
from rdm_solo.ground.errors import UserError
from rdm_solo.spectra.comparison import filter_curve
from rdm_solo.spectra.ranks import effective_rank
from rdm_solo.theory.theorems import filtered_eigenvalues, kind, rank_difference


@dataclass(frozen=True)
class Preview:
    """A filter's effect on a spectrum of singular values, returned by :func:`predict_effect`."""

    name: str
    branch: str
    sigma: Tensor  # descending singular values of the unfiltered outputs
    gain: Tensor  # the filter's value at each of them
    lam_p: Tensor  # spectra of both branches, each with the sum 1
    lam_z: Tensor
    curve: Tensor  # the equivalent online filter g(lam_z), with eigenvalues paired by rank
    own_kind: str  # of |gain|, from :func:`rdm_solo.theory.kind`
    online_kind: str  # of the equivalent online filter
    warnings: list[str]

    @property
    def line(self) -> str:
        """Return the filter's kind and both effective ranks in one line."""
        own_kind = describe(self.own_kind)
        if self.branch == "both":
            effect = f"{own_kind} on both branches, which no filter separates"
        elif self.branch == "target":
            online_kind = describe(self.online_kind)
            effect = f"{own_kind} on the target branch, as an online filter {online_kind}"
        else:
            effect = f"{own_kind} on the online branch"
        return (
            f"{self.name}: {effect}; "
            f"erank {float(effective_rank(self.lam_p)):.3g} online, "
            f"{float(effective_rank(self.lam_z)):.3g} target; for sigma from "
            f"{float(self.sigma.min()):.3g} to {float(self.sigma.max()):.3g}."
        )


def predict_effect(
    name: str, branch: str, function: BoundFunction, sigma: Tensor, rows: int = 256
) -> Preview:
    """Return the effect of a filter on a batch with these singular values and this many rows.

    Shapes: ``(r,)``.

    >>> import torch
    >>> from rdm_solo import filters
    >>> function, sigma = filters.get("pow", p=-0.5), torch.tensor([4.0, 1.0])
    >>> effect = predict_effect("power", "target", function, sigma)
    >>> effect.own_kind, effect.online_kind, effect.warnings
    ('high-pass', 'low-pass', [])
    """
    sigma = sigma.double().sort(descending=True).values
    gain = function(sigma, rows)
    if not gain.isfinite().all():
        raise UserError(
            f"{name} must return one finite number for each singular value, got NaN or infinity."
        )
    lam = sigma.square()
    filtered = filtered_eigenvalues(lam, gain)
    if not filtered.any():
        raise UserError(f"{name} is zero at every singular value of the spectrum.")
    lam_p = _unit_sum(lam if branch == "target" else filtered)
    lam_z = _unit_sum(lam if branch == "online" else filtered)
    curve = filter_curve(lam_p, lam_z)
    own_kind = kind(gain.abs())
    online_kind = kind(curve)
    warnings = []
    if kind(filtered) not in ("low-pass", "none"):
        warnings.append(
            f"{name} changes the order of the directions, because sigma * |g(sigma)| does not "
            "always grow with sigma. Only the sorted spectra are compared."
        )
    negative = int((gain < 0).sum())
    if negative:
        warnings.append(
            f"g is negative for {negative} of {len(sigma)} directions (log sigma is negative below "
            "sigma = 1). The filter reverses their sign, which changes the loss, not the spectrum."
        )
    warnings.extend(_scale_warnings(function, rows, sigma, gain, own_kind))
    if online_kind == "none":
        warnings.append(
            "there is no filter: both branches have the same spectrum; nothing raises the rank."
        )
    elif online_kind == "high-pass":
        warnings.append(
            "it points the wrong way: with a high-pass online filter the target's effective rank "
            "is below the online branch's (Theorem 3), so alignment lowers the rank."
        )
    elif online_kind != "low-pass":
        side = "above" if rank_difference(lam_p, lam_z) > 0 else "below"
        warnings.append(
            f"Theorem 3 does not cover a {online_kind} filter; on this spectrum the target's "
            f"effective rank is {side} the online branch's."
        )
    return Preview(name, branch, sigma, gain, lam_p, lam_z, curve, own_kind, online_kind, warnings)


def _scale_warnings(
    function: BoundFunction, rows: int, sigma: Tensor, gain: Tensor, own_kind: str
) -> Iterator[str]:
    """Warn if the curve changes with the batch size, since sigma grows with its square root."""
    text = ""
    depends_on_batch = False
    is_zero = gain == 0
    for batch, factor in (("a quarter of", 0.5), ("four times", 2.0)):
        other = function(sigma * factor, round(rows * factor**2))
        # Only a constant ratio leaves the curve as it is.
        ratio = other[~is_zero] / gain[~is_zero]
        spread = (ratio.max() - ratio.min()).abs()
        if spread > 1e-6 * ratio.abs().max() or other[is_zero].any():
            depends_on_batch = True
        other_kind = kind(other.abs())
        if other_kind != own_kind:
            text += f"; with {batch} the batch it is {describe(other_kind)}"
    if depends_on_batch:
        yield (
            "the curve depends on the filter's batch size, because sigma grows with its square "
            f"root, and on the outputs' scale, here that of a batch norm{text}."
        )


def _unit_sum(lam: Tensor) -> Tensor:
    """Return descending eigenvalues, rescaled to sum 1."""
    lam = lam.sort(descending=True).values
    return lam / lam.sum()


def describe(kind: str) -> str:
    """Describe a result of :func:`rdm_solo.theory.kind` in words."""
    return "no filter (constant)" if kind == "none" else kind
