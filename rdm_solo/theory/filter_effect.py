"""A filter's effect on a spectrum: its kind on either branch, both ranks, and warnings."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rdm_solo.filters.functions import real_values
from rdm_solo.spectra.comparison import filter_curve
from rdm_solo.theory import rank_path
from rdm_solo.theory.theorems import filtered_eigenvalues, kind, rank_difference

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
    curve: Tensor  # the equivalent online filter g(lam_z), by rank
    own: str  # the kind of |g(sigma)|
    online: str  # the kind of the equivalent online filter
    warnings: tuple[str, ...]

    @property
    def line(self) -> str:
        """The filter's kind and both effective ranks, in one line."""
        same = "" if self.branch == "online" else f", as an online filter {called(self.online)}"
        return (
            f"{self.name}: {called(self.own)} on the {self.branch} branch{same}; "
            f"erank {rank_path.rank_of(self.lam_p):.3g} online, "
            f"{rank_path.rank_of(self.lam_z):.3g} target; looked at sigma from "
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
    values = real_values(gain(sigma), sigma, name)
    if not bool(values.isfinite().all()):
        raise ValueError(
            f"{name} must give one finite number for each singular value, got NaN or infinity for "
            f"{int((~values.isfinite()).sum())} of {len(sigma)}."
        )
    lam = sigma.square()
    left = filtered_eigenvalues(lam, values)
    if not float(left.sum()) > 0:
        raise ValueError(f"{name} is zero at every singular value that was looked at.")
    lam_p, lam_z = (left, lam) if branch == "online" else (lam, left)
    lam_p, lam_z = rank_path.unit_sum(lam_p), rank_path.unit_sum(lam_z)
    curve = filter_curve(lam_p, lam_z)
    own, online = kind(values.abs()), kind(curve)
    warnings = []
    if kind(left) not in ("low-pass", "none"):
        warnings.append(
            f"{name} changes the order of the directions (sigma * |g(sigma)| does not grow with "
            "sigma): only the sorted spectra are compared."
        )
    if bool((values < 0).any()):
        warnings.append(
            f"g is negative for {int((values < 0).sum())} of {len(sigma)} directions (log sigma "
            "is, below sigma = 1): the filter reverses their sign, which changes the loss but not "
            "the spectrum, since spectra depend on |g| alone."
        )
    warnings += [*_on_scale(gain, sigma, values, own), *_on_direction(online, lam_p, lam_z)]
    return Preview(name, branch, gain, sigma, lam_p, lam_z, curve, own, online, tuple(warnings))


def _on_scale(gain: Gain, sigma: Tensor, values: Tensor, own: str) -> Iterator[str]:
    """Sigma grows with the root of the batch: try a quarter of the batch and four times as many."""
    text, moved, zero = "", False, values == 0
    for batch, factor in (("a quarter of", 0.5), ("four times", 2.0)):
        other = gain(sigma * factor)
        ratio = other[~zero] / values[~zero]
        moved |= bool((ratio.max() - ratio.min()).abs() > 1e-6 * ratio.abs().max())
        moved |= bool(other[zero].any())
        found = kind(other.abs())
        text += f"; with {batch} the batch it is {called(found)}" if found != own else ""
    if moved:
        yield (
            "the curve depends on the filter's batch size, because sigma grows with its root and "
            f"with the outputs' scale, taken here as a batch norm's{text}."
        )


def _on_direction(online: str, lam_p: Tensor, lam_z: Tensor) -> Iterator[str]:
    if online == "none":
        yield "no filter at all: both branches have the same spectrum, and nothing raises the rank."
    elif online == "high-pass":
        yield (
            "it points the wrong way: a high-pass online filter puts the target's effective rank "
            "below the online branch's (Theorem 3), and alignment pulls the rank down."
        )
    elif online != "low-pass":
        yield (
            f"Theorem 3 says nothing about a {online} filter; on this spectrum the target's "
            f"effective rank is {'above' if rank_difference(lam_p, lam_z) > 0 else 'below'} the "
            "online branch's."
        )


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
