"""Run folders with made-up spectra."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from omegaconf import OmegaConf
from torch import Tensor

from rdm_solo import theory
from rdm_solo.runs import spectra_files
from rdm_solo.spectra import spearman
from rdm_solo.theory import rank_path

SIGMA = torch.arange(1, 17, dtype=torch.float64) ** -0.5 * 20


OMEGA = torch.linspace(0.98, 0.8, 16, dtype=torch.float64)


# The online, the target's and the positives' eigenvalues of an epoch.
Epoch = tuple[Tensor, Tensor, Tensor]


def write(
    folder: Path,
    epochs: Sequence[Epoch],
    method: str = "simsiam",
    chosen: dict[str, str] | None = None,
    p: float | None = None,
    directional: float = 1.0,
) -> Path:
    """A run with these spectra, and what the diagnostics' columns would have of them."""
    online, target, positive = (torch.stack(lams) for lams in zip(*epochs))
    curve = torch.sqrt(online / target.clamp_min(1e-300))
    (folder / ".hydra").mkdir(parents=True)
    write_spectra(
        folder,
        {
            "epoch": np.arange(1, len(epochs) + 1),
            "lam_online": online.numpy(),
            "lam_projection": online.numpy(),
            "lam_target": target.numpy(),
            "lam_positive": positive.numpy(),
            "filter_curve": curve.numpy(),
        },
    )
    config = {
        "method": {"name": method, "kwargs": {}},
        "filter": chosen or {"name": "none"},
        "p": p,
        "dataset": {"name": "digits"},
        **{"seed": 0, "max_epochs": len(epochs), "batch_size": 64},
    }
    OmegaConf.save(OmegaConf.create(config), folder / ".hydra" / "config.yaml")
    rows = [
        {
            "epoch": i + 1,
            **{"erank/online": erank(lam_p), "erank/gap": erank(lam_z) - erank(lam_p)},
            "filter/monotonicity": float(spearman(curve[i], lam_z)),
            "filter/monotonicity_directional": directional,
        }
        for i, (lam_p, lam_z, _) in enumerate(epochs)
    ]
    with open(folder / "metrics.csv", "w", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)
    return folder


def write_spectra(folder: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """A file for each epoch of arrays whose first axis are epochs."""
    for row, epoch in enumerate(arrays["epoch"]):
        spectra_files.write(folder, int(epoch), {name: a[row] for name, a in arrays.items()})


def erank(lam: Tensor) -> float:
    q = lam[lam > 0].double() / lam.sum()
    return float((-(q * q.log()).sum()).exp())


def by_the_theorem(
    pull: float,
    epochs: int = 8,
    filters: Callable[[int], float] = lambda epoch: 0.5,
    omega: Tensor = OMEGA,
) -> list[Epoch]:
    """Spectra of a run that goes exactly its way, with the target lam^power(epoch)."""
    steps = max(1, round(pull / rank_path.STEP))
    lam, found = SIGMA.square() / SIGMA.square().sum(), []
    for power in map(filters, range(epochs)):
        lam_z = raised(lam, power)
        found.append((lam, lam_z, omega * lam_z))
        for _ in range(steps):
            lam_z = raised(lam, power)
            lam = theory.updated_eigenvalues(lam, lam_z, omega * lam_z, pull / steps)
            lam = raised(lam.sort(descending=True).values, 1.0)
    return found


def raised(lam: Tensor, power: float) -> Tensor:
    return lam**power / (lam**power).sum()


def write_run(folder: Path, pull: float, epochs: int = 8, name: str = "target_pow") -> Path:
    """A run by the theorem, with sigma^-0.5 on the target or a filter of that name."""
    if name != "target_pow":
        return write(folder, by_the_theorem(pull, epochs), chosen={"name": name})
    chosen = {"name": name, "branch": "target", "function": "pow"}
    return write(folder, by_the_theorem(pull, epochs), chosen=chosen, p=-0.5)
