"""Run folders with made-up spectra."""

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
    online, target, positive = (torch.stack(lams) for lams in zip(*epochs))
    curve = torch.sqrt(online / target.clamp_min(1e-300))
    ranks = list(map(erank, online))
    columns = {
        "epoch": list(range(1, len(epochs) + 1)),
        "erank/online": ranks,
        "erank/gap": [erank(lam) - rank for lam, rank in zip(target, ranks)],
        "filter/monotonicity": [1.0] * len(epochs),
        "filter/monotonicity_directional": [1.0] * len(epochs),
    }
    spectra = {
        "lam_online": online.numpy(),
        "lam_projection": online.numpy(),
        "lam_target": target.numpy(),
        "lam_positive": positive.numpy(),
        "filter_curve": curve.numpy(),
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
    lines = [",".join(map(str, row)) for row in zip(*columns.values())]
    if lines:
        (folder / "metrics.csv").write_text("\n".join([",".join(columns), *lines]) + "\n")
    for row, epoch in enumerate(columns["epoch"] if spectra else ()):
        spectra_files.write(folder, epoch, {name: array[row] for name, array in spectra.items()})
    return folder


def erank(lam: Tensor) -> float:
    q = lam[lam > 0].double() / lam.sum()
    return float((-(q * q.log()).sum()).exp())


def by_the_theorem(pull: float, epochs: int = 8) -> list[Epoch]:
    """Return spectra that follow Theorem 4, with sigma^-0.5 on the target: lam_z = lam_p^0.5."""
    steps = max(1, round(pull / STEP))
    lam = SIGMA.square() / SIGMA.square().sum()
    spectra = []
    for _ in range(epochs):
        lam_z = raised(lam, 0.5)
        spectra.append((lam, lam_z, OMEGA * lam_z))
        for _ in range(steps):
            lam_z = raised(lam, 0.5)
            lam = theory.updated_eigenvalues(lam, lam_z, OMEGA * lam_z, pull / steps)
            lam = raised(lam.sort(descending=True).values, 1.0)
    return spectra


def raised(lam: Tensor, power: float) -> Tensor:
    return lam**power / (lam**power).sum()


def write_run(folder: Path, pull: float, epochs: int = 8, name: str = "target_pow") -> Path:
    """Write a run that follows Theorem 4, with sigma^-0.5 on the target or the named filter."""
    if name != "target_pow":
        return write(folder, by_the_theorem(pull, epochs), chosen={"name": name})
    chosen = {"name": name, "branch": "target", "function": "pow"}
    return write(folder, by_the_theorem(pull, epochs), chosen=chosen, p=-0.5)
