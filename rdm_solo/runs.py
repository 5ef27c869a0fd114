"""What a run has left in its folder, read back; and the runs below a sweep's folder."""

from __future__ import annotations

import csv
import json
import math
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf

__all__ = ["Run", "exponent", "find", "load", "read_metrics", "survey"]

# A folder with one of these is a run's.
MARKS = (".hydra/config.yaml", "summary.json")

METHODS = {
    "simsiam": "SimSiam",
    "byol": "BYOL",
    "swav": "SwAV",
    "dino": "DINO",
    "symsimsiam": "SymSimSiam",
    "vanilla": "Vanilla",
}
FILTERS = {
    "linear": "linear",
    "identity": "identity",
    "online_pow": "g(σ) = σ^{p}",
    "online_log": "g(σ) = log σ",
    "online_log1p": "g(σ) = log(1 + σ)",
    "online_log1p_sq": "g(σ) = log(1 + σ²)",
    "target_pow": "h(σ) = σ^{p}",
}


@dataclass(frozen=True)
class Run:
    """One run's folder. What is not there is empty, and named in ``missing``.

    ``metrics`` has the columns of ``metrics.csv`` (NaN: not measured), ``spectra`` the arrays of
    ``spectra.npz``, whose first axis are the epochs in ``spectra["epoch"]`` (from 0).
    """

    folder: Path
    config: DictConfig
    metrics: dict[str, np.ndarray] = field(default_factory=dict)
    spectra: dict[str, np.ndarray] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    missing: tuple[str, ...] = ()

    @property
    def method(self) -> str:
        return str(self.config.method.name)

    @property
    def filter(self) -> str:
        return str(self.config.filter.name)

    @property
    def dataset(self) -> str:
        return str(self.config.dataset.name)

    @property
    def seed(self) -> int:
        return int(self.config.seed)

    @property
    def p(self) -> float | None:
        """The exponent; None where there is none, or a schedule instead of a number."""
        p = self.config.get("p")
        return None if p is None or OmegaConf.is_config(p) else float(p)

    @property
    def epochs(self) -> int:
        """Epochs that have ended; ``config.max_epochs`` were asked for."""
        return len(self.metrics.get("epoch", ()))

    @property
    def label(self) -> str:
        """Method and filter in the paper's words, the same for all seeds."""
        name = METHODS.get(self.method, self.method)
        if self.filter in ("none", "learnable"):
            return name
        shown = FILTERS.get(self.filter, self.filter)
        return f"{name}, {shown.replace('{p}', exponent(self.config.get('p')))}"

    def last(self, column: str) -> float:
        """The last measured value of a column; NaN without one."""
        values = self.metrics.get(column, np.empty(0))
        measured = values[np.isfinite(values)]
        return float(measured[-1]) if len(measured) else math.nan


def exponent(p: Any) -> str:
    """An exponent, or a schedule of one, as text.

    >>> exponent(-0.5), exponent({"schedule": "linear", "start": -0.1, "end": -0.5})
    ('-0.5', '(-0.1…-0.5, linear)')
    """
    if p is None or isinstance(p, (int, float)):
        return "" if p is None else f"{p:g}"
    return f"({p['start']:g}…{p['end']:g}, {p['schedule']})" if "end" in p else f"{p['start']:g}"


def read_metrics(path: Path) -> dict[str, np.ndarray]:
    """The columns of a ``metrics.csv``; a value that was not measured is NaN."""
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    names = [name for name in (rows[0] if rows else []) if name]
    return {name: np.array([_number(row[name]) for row in rows]) for name in names}


def _number(text: str | None) -> float:
    """What a cell says; NaN for an empty one, or one that was cut off while it was written."""
    try:
        return float(text or "nan")
    except ValueError:
        return math.nan


def load(folder: Path) -> Run:
    """The run in that folder; ValueError where there is none.

    A run that goes on, or broke off, is loaded as far as it went.
    """
    if not _is_run(folder):
        raise ValueError(
            f"{folder} is no run's folder: it holds neither .hydra/config.yaml nor summary.json."
        )
    missing: list[str] = []
    summary = _read_summary(folder / "summary.json", missing)
    cfg = _read_config(folder, summary)
    metrics: dict[str, np.ndarray] = {}
    try:
        metrics = read_metrics(folder / "metrics.csv")
    except FileNotFoundError:
        pass
    except (OSError, ValueError, csv.Error):
        missing.append("metrics.csv cannot be read")
    done, asked = len(metrics.get("epoch", ())), cfg.get("max_epochs", 0)
    if not done:
        missing.append("no epoch has ended")
    elif done < asked:
        missing.append(f"{done} of {asked} epochs")
    if done and not (folder / "summary.json").is_file():
        missing.append("no summary.json (the run goes on, or broke off)")
    try:
        spectra = _read_spectra(folder / "spectra.npz")
    except FileNotFoundError:
        spectra = {}
        missing += ["no spectra.npz (diagnostics were off?)"] * bool(done)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        spectra = {}
        missing.append("spectra.npz cannot be read (broken off while it was written?)")
    return Run(folder, cfg, metrics, spectra, summary, tuple(missing))


def _read_spectra(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as saved:
        return {name: saved[name] for name in saved.files}


def _read_summary(path: Path, missing: list[str]) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict):
        missing.append("summary.json cannot be read")
        return {}
    return found


def _read_config(folder: Path, summary: dict[str, Any]) -> DictConfig:
    path = folder / ".hydra" / "config.yaml"
    try:
        cfg: Any = OmegaConf.load(path) if path.is_file() else OmegaConf.create(summary["config"])
        groups = ("method.name", "filter.name", "dataset.name")
        whole = all(OmegaConf.select(cfg, name) for name in groups) and "seed" in cfg
    except Exception as error:  # YAML's, OmegaConf's and the file system's: one sentence for all
        raise ValueError(f"{folder}: its config cannot be read ({_line(error)}).") from error
    if not whole:
        raise ValueError(f"{folder} is no run of this package: its config names no method or seed.")
    assert isinstance(cfg, DictConfig)
    return cfg


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def find(paths: Sequence[Path]) -> list[Run]:
    """The runs in these folders: each is a run's own, or holds runs at any depth (a sweep)."""
    found, broken = survey(paths)
    if broken:
        raise ValueError(broken[0])
    return found


def survey(paths: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """The runs in these folders, and a sentence for each folder whose run cannot be read."""
    found: dict[Path, Run] = {}
    broken: dict[Path, str] = {}
    for path in paths:
        if not path.is_dir():
            raise ValueError(f"{path} is no folder; give the folder of a run or of a sweep.")
        folders = [path] if _is_run(path) else _below(path)
        if not folders:
            raise ValueError(
                f"{path} holds no run: no folder below it has .hydra/config.yaml or summary.json."
            )
        for folder in folders:
            place = folder.resolve()
            try:
                found[place] = found[place] if place in found else load(folder)
            except ValueError as error:
                broken[place] = str(error)
    return list(found.values()), list(broken.values())


def _is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in MARKS)


def _below(folder: Path) -> list[Path]:
    inner = {path.parent for path in folder.rglob("summary.json")}
    inner |= {path.parent.parent for path in folder.rglob(".hydra/config.yaml")}
    return sorted(inner, key=_natural)


def _natural(path: Path) -> list[tuple[int, str]]:
    """Order that puts job 10 of a sweep behind job 9."""
    numbers = ((part.split("_")[0], part) for part in path.parts)
    return [(int(lead) if lead.isdigit() else -1, part) for lead, part in numbers]
