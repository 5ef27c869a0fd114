"""Write run folders with invented spectra."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf
from torch import Tensor

from rdm_solo import theory
from rdm_solo.runs import spectra_files

SIGMA = torch.arange(1, 17, dtype=torch.float64) ** -0.5 * 20
STEP = 0.1  # alpha of a single update
OMEGA = torch.linspace(0.98, 0.8, 16, dtype=torch.float64)

# The online, the target's and the positives' eigenvalues of an epoch.
Epoch = tuple[Tensor, Tensor, Tensor]


def write(
    folder: Path,
    epochs: Sequence[Epoch],
    method: str = "simsiam",
    chosen: dict[str, str] | None = None,
    p: float | None = None,
) -> Path:
    """Write a run with these spectra and the columns that diagnostics would derive from them."""
    columns: dict[str, list[float]] = {
        "epoch": [],
        "erank/online": [],
        "erank/gap": [],
        "filter/monotonicity": [],
        "filter/monotonicity_directional": [],
    }
    for epoch, (online, target, _) in enumerate(epochs, start=1):
        columns["epoch"].append(epoch)
        columns["erank/online"].append(erank(online))
        columns["erank/gap"].append(erank(target) - erank(online))
        columns["filter/monotonicity"].append(1.0)
        columns["filter/monotonicity_directional"].append(1.0)
    online, target, positive = (torch.stack(lam) for lam in zip(*epochs))
    spectra = {
        "lam_online": online.numpy(),
        "lam_projection": online.numpy(),
        "lam_target": target.numpy(),
        "lam_positive": positive.numpy(),
        "filter_curve": torch.sqrt(online / target.clamp_min(1e-300)).numpy(),
    }
    names = {"method": {"name": method, "kwargs": {}}, "filter": chosen or {"name": "none"}}
    saved = config(p, 0, max_epochs=len(epochs), **names)
    return write_folder(folder, saved, columns, spectra)


def config(p: float | None, seed: int, dataset: str = "digits", **changed: Any) -> dict[str, Any]:
    """Return the config of a run with some entries changed."""
    return {
        "method": {"name": "simsiam"},
        "filter": {"name": "learnable" if p is None else "target_pow"},
        "dataset": {"name": dataset},
        "p": p,
        "seed": seed,
        "max_epochs": 3,
        "batch_size": 64,
        "scheduler": {"warmup_epochs": 0},
        "backbone": {"name": "small_resnet"},
        **changed,
    }


def write_folder(
    folder: Path,
    config: Mapping[str, Any],
    columns: Mapping[str, Sequence[Any]],
    spectra: Mapping[str, np.ndarray],
) -> Path:
    """Write a run's config, and one epoch for each row of the columns and arrays."""
    (folder / ".hydra").mkdir(parents=True)
    OmegaConf.save(OmegaConf.create(dict(config)), folder / ".hydra" / "config.yaml")
    if columns["epoch"]:
        with open(folder / "metrics.csv", "w", newline="") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(columns)
            table.writerows(zip(*columns.values()))
    if spectra:
        for row, epoch in enumerate(columns["epoch"]):
            arrays = {name: array[row] for name, array in spectra.items()}
            spectra_files.write(folder, epoch, arrays)
    return folder


def erank(lam: Tensor) -> float:
    q = lam.double() / lam.sum()
    return float(torch.special.entr(q).sum().exp())


def by_the_theorem(pull: float, epochs: int = 8) -> list[Epoch]:
    """Return spectra that follow Theorem 4, with sigma^-0.5 on the target: lam_z = lam_p^0.5."""
    steps = max(1, round(pull / STEP))
    lam = normalised(SIGMA.square())
    spectra = []
    for _ in range(epochs):
        lam_z = normalised(lam**0.5)
        spectra.append((lam, lam_z, OMEGA * lam_z))
        for _ in range(steps):
            lam_z = normalised(lam**0.5)
            lam = theory.updated_eigenvalues(lam, lam_z, OMEGA * lam_z, pull / steps)
            lam = normalised(lam.sort(descending=True).values)
    return spectra


def normalised(lam: Tensor) -> Tensor:
    return lam / lam.sum()


def write_run(folder: Path, pull: float, epochs: int = 8, name: str = "target_pow") -> Path:
    """Write a run that follows Theorem 4, with sigma^-0.5 on the target or the named filter."""
    spectra = by_the_theorem(pull, epochs)
    if name != "target_pow":
        return write(folder, spectra, chosen={"name": name})
    chosen = {"name": name, "branch": "target", "function": "pow"}
    return write(folder, spectra, chosen=chosen, p=-0.5)
