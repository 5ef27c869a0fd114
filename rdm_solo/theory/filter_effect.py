"""A filter's effect on a spectrum: its kind on either branch, both ranks, and warnings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rdm_solo.spectra.measures import effective_rank, filter_curve
from rdm_solo.theory import rank_path
from rdm_solo.theory.filtering import filtered_eigenvalues, is_low_pass, kind, rank_difference

__all__ = ["Preview", "called", "look", "relation"]

Gain = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Preview:
    """A filter's effect on a spectrum of singular values; :func:`look` makes it."""

    name: str
    branch: str
    gain: Gain
    sigma: Tensor  # descending singular values of the unfiltered outputs
    lam_p: Tensor  # spectra of both branches, each with the sum 1
    lam_z: Tensor
    own: str  # the kind of |g(sigma)|
    online: str  # the kind of the equivalent online filter
    warnings: tuple[str, ...]

    @property
    def curve(self) -> Tensor:
        """The equivalent online filter g(lam_z), by rank."""
        return filter_curve(self.lam_p, self.lam_z)

    @property
    def line(self) -> str:
        """The filter's kind and both effective ranks, in one line."""
        same = "" if self.branch == "online" else f", as an online filter {called(self.online)}"
        return (
            f"{self.name}: {called(self.own)} on the {self.branch} branch{same}; "
            f"erank {float(effective_rank(self.lam_p)):.3g} online, "
            f"{float(effective_rank(self.lam_z)):.3g} target; looked at sigma from "
            f"{float(self.sigma.min()):.3g} to {float(self.sigma.max()):.3g}."
        )


def look(name: str, branch: str, gain: Gain, sigma: Tensor) -> Preview:
    """The effect of a filter on outputs with these singular values. Shapes: ``(r,)``.

    >>> from rdm_solo import filters
    >>> seen = look("power", "target", filters.get("pow", p=-0.5), torch.tensor([4.0, 1.0]))
    >>> seen.own, seen.online, seen.warnings
    ('high-pass', 'low-pass', ())
    """
    sigma = sigma.double().sort(descending=True).values
    values = gain(sigma)
    if values.shape != sigma.shape or not bool(values.isfinite().all()):
        raise ValueError(
            f"{name} must give one finite number for each singular value, got "
            f"{tuple(values.shape)} for {len(sigma)} of them"
            f"{'' if values.shape != sigma.shape else ', with NaN or infinity among them'}."
        )
    lam = sigma.square()
    left = filtered_eigenvalues(lam, values)
    if not float(left.sum()) > 0:
        raise ValueError(f"{name} is zero at every singular value that was looked at.")
    lam_p, lam_z = (left, lam) if branch == "online" else (lam, left)
    lam_p, lam_z = rank_path.unit_sum(lam_p), rank_path.unit_sum(lam_z)
    curve = filter_curve(lam_p, lam_z)
    own, online = kind(values.abs()), kind(curve)
    warnings = (
        *_order(name, sigma, left),
        *_sign(sigma, values),
        *_scale(branch, gain, sigma, values, own),
        *_direction(online, lam_p, lam_z),
    )
    return Preview(name, branch, gain, sigma, lam_p, lam_z, own, online, warnings)


def _order(name: str, sigma: Tensor, left: Tensor) -> list[str]:
    if is_low_pass(left):
        return []
    return [
        f"{name} changes the order of the directions (sigma * |g(sigma)| does not grow with "
        "sigma): only the sorted spectra are compared."
    ]


def _sign(sigma: Tensor, values: Tensor) -> list[str]:
    below = values < 0
    if not bool(below.any()):
        return []
    share = f"{int(below.sum())} of {len(sigma)} directions"
    return [
        f"g is negative for {share} (log sigma is, below sigma = 1): the filter reverses their "
        "sign, which changes the loss but not the spectrum, since spectra depend on |g| alone."
    ]


def _scale(branch: str, gain: Gain, sigma: Tensor, values: Tensor, own: str) -> list[str]:
    """Sigma grows with the root of the batch: try a quarter of the batch and four times as many."""
    kinds, moved = {}, False
    for factor in (0.25, 4.0):
        other = gain(sigma * factor**0.5)
        ratio = other / torch.where(values == 0, 1.0, values)
        moved |= bool((ratio.max() - ratio.min()).abs() > 1e-6 * ratio.abs().max())
        kinds[factor] = kind(other.abs())
    if not moved:
        return []
    text = (
        "the curve depends on the global batch size, because sigma grows with its root and with "
        "the outputs' scale, taken here as a batch norm's"
    )
    changed = [
        f"with {'a quarter of' if factor < 1 else 'four times'} the batch it is {called(found)}"
        for factor, found in kinds.items()
        if found != own
    ]
    return [f"{text}{''.join('; ' + part for part in changed)}."]


def _direction(online: str, lam_p: Tensor, lam_z: Tensor) -> list[str]:
    gap = float(rank_difference(lam_p, lam_z))
    if online == "none":
        return [
            "no filter at all: both branches have the same spectrum, and nothing raises the rank."
        ]
    if online == "high-pass":
        return [
            "it points the wrong way: a high-pass online filter puts the target's effective rank "
            "below the online branch's (Theorem 3), and alignment pulls the rank down."
        ]
    if online != "low-pass":
        return [
            f"Theorem 3 says nothing about a {online} filter; on this spectrum the target's "
            f"effective rank is {'above' if gap > 0 else 'below'} the online branch's."
        ]
    return []


def relation(seen: Preview) -> rank_path.Relation:
    """The function that maps an online spectrum with the sum 1 to the target's spectrum.

    An online filter is inverted where ``sigma * |g(sigma)|`` grows. Where the spectrum reaches
    beyond that range, or g depends on all singular values at once (on their largest, say), the
    eigenvalues of both branches are paired by rank.
    """
    energy = seen.sigma.square().sum()
    if seen.branch == "target":

        def to_target(lam_p: Tensor) -> Tensor:
            lam = (lam_p * energy).clamp_min(1e-30)
            return filtered_eigenvalues(lam, seen.gain(lam.sqrt()))

        return to_target
    sigma = seen.sigma[0] * torch.logspace(-4, 2, 600, dtype=torch.float64)
    own, among = seen.gain(seen.sigma), seen.gain(torch.cat([sigma, seen.sigma]))
    left = filtered_eigenvalues(sigma.square(), among[: len(sigma)])
    falls = (left.diff() <= 0).nonzero()
    start = int(falls[-1]) + 1 if len(falls) else 0
    beyond = float(seen.sigma.min()) < float(sigma[min(start, len(sigma) - 1)])
    if beyond or not torch.allclose(own, among[len(sigma) :], rtol=1e-9, atol=0):
        return rank_path.relation(seen.lam_p, seen.lam_z)
    total = filtered_eigenvalues(seen.sigma.square(), own).sum()
    return rank_path.relation(left[start:] / total, sigma[start:].square() / energy)


def called(kind: str) -> str:
    """The result of :func:`rdm_solo.theory.kind`, for a reader.

    >>> called("low-pass"), called("none")
    ('low-pass', 'no filter (constant)')
    """
    return "no filter (constant)" if kind == "none" else kind
