"""Write run folders with invented spectra."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from omegaconf import OmegaConf
from torch import Tensor

from rdm_solo.runs import spectra_files

SIGMA = torch.arange(1, 17, dtype=torch.float64) ** -0.5 * 20


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
