"""A filter's effect on a spectrum: its kind on each branch, both ranks, and warnings."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from rdm_solo.filters.functions import BoundFunction
from rdm_solo.ground.errors import UserError
from rdm_solo.spectra.comparison import filter_curve
from rdm_solo.spectra.ranks import effective_rank
from rdm_solo.theory.theorems import filtered_eigenvalues, kind, rank_difference

Gain = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Preview:
    """A filter's effect on a spectrum of singular values, returned by :func:`predict_effect`."""

    name: str
    branch: str
    gain: Gain
    sigma: Tensor  # descending singular values of the unfiltered outputs
    rows: int  # of the batch
    lam_p: Tensor  # spectra of both branches, each with the sum 1
    lam_z: Tensor
    curve: Tensor  # the equivalent online filter g(lam_z), with eigenvalues paired by rank
    own_kind: str  # of |g(sigma)|, from :func:`rdm_solo.theory.kind`
    online_kind: str  # of the equivalent online filter
    warnings: tuple[str, ...]

    @property
    def line(self) -> str:
        """Return the filter's kind and both effective ranks in one line."""
        same, place = "", f"the {self.branch} branch"
        if self.branch == "both":
            place, same = "both branches", ", which no filter separates"
        elif self.branch == "target":
            same = f", as an online filter {describe(self.online_kind)}"
        return (
            f"{self.name}: {describe(self.own_kind)} on {place}{same}; "
            f"erank {float(effective_rank(self.lam_p)):.3g} online, "
            f"{float(effective_rank(self.lam_z)):.3g} target; for sigma from "
            f"{float(self.sigma.min()):.3g} to {float(self.sigma.max()):.3g}."
        )


def predict_effect(
    name: str, branch: str, gain: Gain | BoundFunction, sigma: Tensor, rows: int = 256
) -> Preview:
    """Return the effect of a filter on a batch with these singular values and this many rows.

    Shapes: ``(r,)``.

    >>> import torch
    >>> from rdm_solo import filters
    >>> gain, sigma = filters.get("pow", p=-0.5), torch.tensor([4.0, 1.0])
    >>> effect = predict_effect("power", "target", gain, sigma)
    >>> effect.own_kind, effect.online_kind, effect.warnings
    ('high-pass', 'low-pass', ())
    """
    sigma = sigma.double().sort(descending=True).values
    bound = gain if isinstance(gain, BoundFunction) else BoundFunction(gain, name)
    values = bound(sigma, rows)
    if not bool(values.isfinite().all()):
        raise UserError(
            f"{name} must return one finite number for each singular value, got NaN or infinity "
            f"for {int((~values.isfinite()).sum())} of {len(sigma)}."
        )
    lam = sigma.square()
    filtered = filtered_eigenvalues(lam, values)
    if not float(filtered.sum()) > 0:
        raise UserError(f"{name} is zero at every singular value of the spectrum.")
    lam_p = _unit_sum(lam if branch == "target" else filtered)
    lam_z = _unit_sum(lam if branch == "online" else filtered)
    curve = filter_curve(lam_p, lam_z)
    own, online = kind(values.abs()), kind(curve)
    warnings = []
    if kind(filtered) not in ("low-pass", "none"):
        warnings.append(
            f"{name} changes the order of the directions, because sigma * |g(sigma)| does not "
            "always grow with sigma. Only the sorted spectra are compared."
        )
    if negative := int((values < 0).sum()):
        warnings.append(
            f"g is negative for {negative} of {len(sigma)} directions (log sigma is negative below "
            "sigma = 1). The filter reverses their sign, which changes the loss, not the spectrum."
        )
    warnings += [*_scale_warnings(bound, rows, sigma, values, own)]
    warnings += [*_direction_warnings(online, lam_p, lam_z)]
    gain = partial(bound, rows=rows)
    return Preview(
        name, branch, gain, sigma, rows, lam_p, lam_z, curve, own, online, tuple(warnings)
    )


def _scale_warnings(
    gain: BoundFunction, rows: int, sigma: Tensor, values: Tensor, own_kind: str
) -> Iterator[str]:
    """Warn if the curve changes with the batch size, since sigma grows with its square root."""
    text, depends_on_batch, zero = "", False, values == 0
    for batch, factor in (("a quarter of", 0.5), ("four times", 2.0)):
        other = gain(sigma * factor, round(rows * factor**2))
        ratio = other[~zero] / values[~zero]
        depends_on_batch |= bool((ratio.max() - ratio.min()).abs() > 1e-6 * ratio.abs().max())
        depends_on_batch |= bool(other[zero].any())
        changed = kind(other.abs())
        text += f"; with {batch} the batch it is {describe(changed)}" if changed != own_kind else ""
    if depends_on_batch:
        yield (
            "the curve depends on the filter's batch size, because sigma grows with its square "
            f"root, and on the outputs' scale, here that of a batch norm{text}."
        )


def _direction_warnings(online: str, lam_p: Tensor, lam_z: Tensor) -> Iterator[str]:
    if online == "none":
        yield "there is no filter: both branches have the same spectrum; nothing raises the rank."
    elif online == "high-pass":
        yield (
            "it points the wrong way: with a high-pass online filter the target's effective rank "
            "is below the online branch's (Theorem 3), so alignment lowers the rank."
        )
    elif online != "low-pass":
        side = "above" if rank_difference(lam_p, lam_z) > 0 else "below"
        yield (
            f"Theorem 3 does not cover a {online} filter; on this spectrum the target's effective "
            f"rank is {side} the online branch's."
        )


def _unit_sum(lam: Tensor) -> Tensor:
    """Return descending eigenvalues, rescaled to sum 1."""
    lam = lam.sort(descending=True).values
    return lam / lam.sum()


def describe(kind: str) -> str:
    """Describe a result of :func:`rdm_solo.theory.kind` in words."""
    return "no filter (constant)" if kind == "none" else kind
