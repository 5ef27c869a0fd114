"""Write run folders with invented spectra."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

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
    online, target, positive = map(torch.stack, zip(*epochs))
    rising = [1.0] * len(epochs)
    columns = {
        "epoch": range(1, len(epochs) + 1),
        "erank/online": [erank(lam) for lam in online],
        "erank/gap": [erank(lam_z) - erank(lam) for lam_z, lam in zip(target, online)],
        "filter/monotonicity": rising,
        "filter/monotonicity_directional": rising,
    }
    spectra = {
        "lam_online": online.numpy(),
        "lam_projection": online.numpy(),
        "lam_target": target.numpy(),
        "lam_positive": positive.numpy(),
        "filter_curve": torch.sqrt(online / target.clamp_min(1e-300)).numpy(),
    }
    saved = config(
        p,
        seed=0,
        method={"name": method, "kwargs": {}},
        filter=chosen or {"name": "none"},
        max_epochs=len(epochs),
    )
    return write_folder(folder, saved, columns, spectra)


def config(p: float | None, seed: int, dataset: str = "digits", **changed) -> dict:
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
    config: dict,
    columns: Mapping[str, Sequence],
    spectra: Mapping[str, np.ndarray],
) -> Path:
    """Write a run's config, and one epoch for each row of the columns and arrays."""
    (folder / ".hydra").mkdir(parents=True)
    OmegaConf.save(OmegaConf.create(config), folder / ".hydra" / "config.yaml")
    if columns["epoch"]:
        with open(folder / "metrics.csv", "w", newline="") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(columns)
            table.writerows(zip(*columns.values()))
    for row, epoch in enumerate(columns["epoch"]):
        if spectra:
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
