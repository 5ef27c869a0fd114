"""Both branches' eigenvalues and eigenspaces from k x k correlation matrices."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor

from rdm_solo.spectra.comparison import energy_and_cosine
from rdm_solo.spectra.ranks import ROUNDING, descending, descending_eigenvectors
from rdm_solo.spectra.rows import discriminant_eigenvalues

Job = Callable[[], Tensor]


@dataclass
class Moments:
    """Descending eigenvalues of C_p, C_z, C_y and C_+, and the inputs of alignments and LiDAR.

    For each eigenvector u of C_z and C = C_p or C_+, ``energy`` is ``u^T C u`` and ``cosine`` is
    ``cos(u, C u)``. ``lam_covariance`` describes centred targets, ``lam_centred`` centred
    projections.
    """

    lam_p: Tensor
    lam_z: Tensor
    lam_y: Tensor
    energy_p: Tensor
    cosine_p: Tensor
    lam_covariance: Tensor
    lam_centred: Tensor | None = None
    lam_plus: Tensor | None = None
    cosine_plus: Tensor | None = None
    lam_lidar: Tensor | None = None

    def apply(self, function: Callable[[Tensor], Tensor]) -> None:
        """Replace each tensor by the function's result."""
        for name, values in vars(self).items():
            if values is not None:
                setattr(self, name, function(values))


def from_matrices(
    C_p: Tensor,
    C_z: Tensor,
    C_plus: Tensor | None,
    C_y: Tensor,
    C_means: Tensor | None,
    mean_z: Tensor,
    pairs: int,
) -> Moments:
    """Return the moments of correlation matrices ``(k, k)``.

    ``C_means`` is the correlation matrix of the steps' means. LiDAR is computed only if the targets
    are two views each of ``pairs`` samples.
    """
    lam_z, u = descending_eigenvectors(C_z)
    C_mean = mean_z.outer(mean_z)
    jobs: dict[str, Job] = {
        "lam_p": partial(descending, C_p),
        "lam_covariance": partial(centred_eigenvalues, C_z, C_mean),
    }
    # A run filters at most one branch, so the projections are the other branch's outputs.
    y_is_z = torch.equal(C_y, C_z)
    if not y_is_z and not torch.equal(C_y, C_p):
        jobs["lam_y"] = partial(descending, C_y)
    if C_means is not None:
        jobs["lam_centred"] = partial(centred_eigenvalues, C_y, C_means)
    if C_plus is not None:
        jobs["lam_plus"] = partial(descending, C_plus)
        if pairs > 1:
            # LiDAR of n samples with two views a and b, since C_z = sum(a a^T + b b^T) / 2n and
            # C_+ = sum(a b^T + b a^T) / 2n. The samples' means are (a + b) / 2.
            S_w = C_z - C_plus
            C_samples = (C_z + C_plus) / 2
            C_centred = C_samples - C_mean
            S_b = C_centred * (pairs / (pairs - 1))
            jobs["lam_lidar"] = partial(discriminant_eigenvalues, S_w, S_b)
    spectra = at_once(jobs, C_z.device)
    if "lam_y" not in spectra:
        spectra["lam_y"] = lam_z if y_is_z else spectra["lam_p"]

    energy_p, cosine_p = energy_and_cosine(C_p, u)
    moments = Moments(lam_z=lam_z, energy_p=energy_p, cosine_p=cosine_p, **spectra)
    if C_plus is not None:
        _, moments.cosine_plus = energy_and_cosine(C_plus, u)
    return moments


def at_once(jobs: Mapping[str, Job], device: torch.device) -> dict[str, Tensor]:
    """Return the result of each job; a GPU works on all of them at the same time.

    The host waits for a decomposition, which leaves most of a GPU idle, and torch 2.11 solves a
    stack of matrices one after the other. Here each job has its own thread and CUDA stream. Call
    ``torch.linalg`` once before, since torch loads its solvers at the first call.
    """
    if device.type != "cuda":
        return {name: job() for name, job in jobs.items()}
    inputs_are_ready = torch.cuda.current_stream(device).record_event()

    def run(number: int, job: Job) -> Tensor:
        stream = _side_stream(device, number)
        stream.wait_event(inputs_are_ready)
        with torch.cuda.stream(stream):
            result = job()
        stream.synchronize()
        return result

    with ThreadPoolExecutor(len(jobs)) as pool:
        results = pool.map(run, range(len(jobs)), jobs.values())
        return dict(zip(jobs, results))


@cache
def _side_stream(device: torch.device, number: int) -> torch.cuda.Stream:
    """Return the same stream in each epoch, because torch caches memory for each stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def centred_eigenvalues(C: Tensor, C_means: Tensor) -> Tensor:
    """Return the descending eigenvalues of ``C - C_means``, with rounding noise set to zero."""
    lam = descending(C - C_means)
    return above_noise(lam, C.diagonal().sum())


def above_noise(lam: Tensor, scale: Tensor) -> Tensor:
    """Set eigenvalues of at most ``ROUNDING * scale``, which are rounding errors, to zero."""
    return lam.where(lam > ROUNDING * scale, 0.0)
