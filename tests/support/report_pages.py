"""Runs with made-up tables and spectra."""

import json
from pathlib import Path

import numpy as np
import torch
from omegaconf import OmegaConf

from rdm_solo import runs
from rdm_solo.report.judged import Setting, judge
from rdm_solo.runs.groups import by_setting
from support.written_runs import config, erank, write_folder


def spectra(p: float, epochs: int, k: int = 8) -> dict[str, np.ndarray]:
    """Return spectra of a target filter: lam_z = lam_p^(1+p), so g = lam_z^(-p/2(1+p))."""
    slope = 2.0 - 0.2 * np.arange(epochs)[:, None]
    online = np.arange(1, k + 1, dtype=float) ** -slope
    online /= online.sum(1, keepdims=True)
    target = online ** (1 + p)
    target /= target.sum(1, keepdims=True)
    curve = np.sqrt(online / target)
    return {
        "lam_online": online,
        "lam_target": target,
        "lam_projection": online,
        "lam_positive": 0.9 * target,
        "filter_curve": curve,
        "filter_curve_directional": curve,
        "epoch": np.arange(1, epochs + 1),
        "rows": np.full(epochs, 512),
        "dimensions": np.full(epochs, k),
    }


def columns(p: float | None, epochs: int) -> dict[str, list[float]]:
    arrays = spectra(p or -0.1, epochs)
    online = [erank(lam) for lam in torch.from_numpy(arrays["lam_online"])]
    target = [erank(lam) for lam in torch.from_numpy(arrays["lam_target"])]
    constant = {
        "alignment/online_target": 0.9,
        "alignment/online_target_weighted": 0.95,
        "alignment/target_positive": 0.9,
        "feature/variance": 0.9,
        "val/acc1": 80.0,
        "filter/monotonicity": 1.0,
        "filter/monotonicity_directional": 1.0,
        "train/loss": -0.5,
        "feature/spread": 0.9,
    }
    return {
        "epoch": list(range(1, epochs + 1)),
        "erank/online": online,
        "erank/target": target,
        "erank/projection": online,
        "erank/centred": online,
        "erank/gap": [z - p for z, p in zip(target, online)],
        **{name: [value] * epochs for name, value in constant.items()},
    }


def write(
    folder: Path,
    p: float | None,
    seed: int,
    epochs: int = 3,
    more_columns: dict[str, list] | None = None,
    **changed,
) -> Path:
    """Write the folder of a run with entries of its config changed."""
    table = columns(p, epochs) | (more_columns or {})
    saved = config(p, seed, **changed)
    write_folder(folder, saved, table, spectra(p or -0.1, epochs))
    overrides = [
        "launcher=local",
        "+launcher.jobs=2",  # of a sweep; a single run refuses these two
        "method=simsiam",
        f"p={p}",
        f"seed={seed}",
        "dataset.root=a b",
    ]
    OmegaConf.save(overrides, folder / ".hydra" / "overrides.yaml")
    if epochs:
        summary = {"seconds": 12.0, "device": "cpu", "versions": {"torch": "2.8"}}
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def run(
    p: float | None = -0.5,
    seed: int = 0,
    epochs: int = 3,
    folder: Path = Path(),
    k: int = 8,
    method: str = "simsiam",
    filter: str | None = None,
    options: dict | None = None,
    **changed,
):
    """Return a run with some columns changed; ``p=None`` stands for the method's own predictor."""
    cfg = OmegaConf.create(config(p, seed))
    cfg.method.name = method
    cfg.filter.name = filter or cfg.filter.name
    for name, value in (options or {}).items():
        OmegaConf.update(cfg, name, value, force_add=True)
    table = columns(p, epochs)
    for name, values in changed.items():
        table[name.replace("__", "/")] = values
    metrics = {name: np.array(values, dtype=float) for name, values in table.items()}
    return runs.RunFolder(folder, cfg, metrics, spectra(p or -0.1, epochs, k), {})


def settings(*members) -> list[Setting]:
    """Return the judged settings of some runs."""
    return judge(by_setting(members))


def seeds(p: float | None, knn: list[float], **changed):
    """Return runs of one setting, one seed for each final kNN accuracy."""
    members = []
    for seed, accuracy in enumerate(knn):
        column = [50, 60, accuracy]
        members.append(run(p, seed, val__knn_acc1=column, **changed))
    return members
