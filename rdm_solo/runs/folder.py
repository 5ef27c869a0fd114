"""What a run has left in its folder, read back; and the runs below a sweep's folder."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf

from rdm_solo.methods import descriptions
from rdm_solo.runs import failures, metrics_file, spectra_files
from rdm_solo.runs.files import CONFIG, METRICS, SPECTRA, SUMMARY
from rdm_solo.runs.labels import exponent
from rdm_solo.runs.saved_config import of_today, read_config

__all__ = ["Run", "find", "load", "read_metrics", "survey"]

# A folder with one of these is a run's.
MARKS = (CONFIG, SUMMARY)


@dataclass(frozen=True)
class Run:
    """One run's folder. What is not there is empty, and named in ``missing``.

    ``metrics`` has the columns of ``metrics.csv`` (NaN: not measured), ``spectra`` the arrays of
    its spectra, whose first axis are the epochs in ``spectra["epoch"]``. Epochs count from 1,
    whichever version wrote the folder.
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
        return self.chosen_filter.label

    @property
    def chosen_filter(self) -> descriptions.ChosenFilter:
        return descriptions.ChosenFilter.of(self.config)

    @property
    def described(self) -> descriptions.Method:
        """Its method's description; of a method that this version does not know, a bare one."""
        unknown = descriptions.Method(self.method, self.method, "", asymmetry="unknown")
        return descriptions.METHODS.get(self.method, unknown)

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
        name, chosen = self.described.label, self.chosen_filter
        if chosen.own:
            return name
        p = exponent(chosen.p)
        shown = chosen.formula or (f"{chosen.label}, p = {{p}}" if p else chosen.label)
        return f"{name}, {shown.replace('{p}', p)}"

    def last(self, column: str) -> float:
        """The last measured value of a column; NaN without one."""
        values = self.metrics.get(column, np.empty(0))
        measured = values[np.isfinite(values)]
        return float(measured[-1]) if len(measured) else math.nan


def read_metrics(folder: Path) -> dict[str, np.ndarray]:
    """The columns of a run's ``metrics.csv``; a value that was not measured is NaN."""
    return metrics_file.read(folder)[0]


def load(folder: Path) -> Run:
    """The run in that folder; ValueError where there is none.

    A run that goes on, or broke off, is loaded as far as it went.
    """
    if not _is_run(folder):
        raise ValueError(f"{folder} is not a run folder: it holds neither {CONFIG} nor {SUMMARY}.")
    missing: list[str] = []
    metrics_file.folder_format(folder)  # refuses one of a later version
    summary = _read_summary(folder / SUMMARY, missing)
    cfg = _read_config(folder, summary, missing)
    metrics = _read_table(folder, missing)
    done, asked = len(metrics.get("epoch", ())), cfg.get("max_epochs", 0)
    if done and done < asked:
        missing.append(f"{done} of {asked} epochs")
    failed = failures.of(folder)
    if failed:
        missing.append(f"it failed: {failed.removesuffix('.')}")
    elif done and not (folder / SUMMARY).is_file():
        missing.append("no summary.json (the run goes on, or broke off)")
    spectra = _read_spectra(folder, missing)
    if done and not spectra:
        missing.append("no spectra (diagnostics were off?)")
    return Run(folder, cfg, metrics, spectra, summary, tuple(missing))


def _read_table(folder: Path, missing: list[str]) -> dict[str, np.ndarray]:
    path = folder / METRICS
    try:
        metrics, cut = metrics_file.read(folder)
    except FileNotFoundError:
        missing.append(f"no {path.name}{_gone(path.parent)}")
        return {}
    except (OSError, ValueError, csv.Error) as error:
        missing.append(f"{path.name} cannot be read ({_line(error)})")
        return {}
    if cut:
        missing.append(f"the last row of {path.name} is cut off and left out")
    if metrics and "epoch" not in metrics:
        missing.append(f"{path.name} has no column epoch")
    elif not len(metrics.get("epoch", ())):
        missing.append(f"{path.name} has no whole row: no epoch has ended")
    return metrics


def _gone(folder: Path) -> str:
    """Whether a table was to be expected."""
    left = [name for name in (SUMMARY, SPECTRA) if (folder / name).exists()]
    if left:
        return f", although {left[0]} is there (was it removed, or not copied?)"
    return ": no epoch has ended"


def _read_spectra(folder: Path, missing: list[str]) -> dict[str, np.ndarray]:
    try:
        spectra, broken = spectra_files.read(folder)
    except ValueError as error:  # arrays that cannot be stacked
        spectra, broken = {}, []
        missing.append(f"{SPECTRA} cannot be read ({_line(error)})")
    missing += [f"{name} cannot be read and is left out" for name in broken]
    return spectra


def _read_summary(path: Path, missing: list[str]) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        missing.append(f"{path.name} cannot be read ({_line(error)})")
        return {}
    if not isinstance(found, dict):
        missing.append(f"{path.name} cannot be read (it holds no object with names)")
        return {}
    if "format" not in found:  # epochs counted from 0
        entries = [found.get("last"), *_listed(found.get("warnings"))]
        for entry in entries:
            if isinstance(entry, dict) and isinstance(entry.get("epoch"), (int, float)):
                entry["epoch"] += 1
    return found


def _listed(entries: Any) -> list[Any]:
    return entries if isinstance(entries, list) else []


def _read_config(folder: Path, summary: dict[str, Any], missing: Sequence[str]) -> DictConfig:
    """The run's own config, else the copy in its summary; ValueError names the file at fault."""
    path = folder / CONFIG
    if not path.is_file():
        path = folder / SUMMARY
        if "config" not in summary:
            why = "; ".join(missing) or "summary.json holds no config"
            raise ValueError(f"{folder}: {why}, and there is no .hydra/config.yaml.")
    try:
        own = path.name == "config.yaml"
        cfg: Any = read_config(path) if own else of_today(summary["config"])
        groups = ("method.name", "filter.name", "dataset.name")
        whole = all(OmegaConf.select(cfg, name) for name in groups) and "seed" in cfg
        numbers = {name: cfg.get(name, 0) for name in ("seed", "max_epochs")} if whole else {}
    except Exception as error:  # YAML's, OmegaConf's and the file system's: one sentence for all
        raise ValueError(f"{path}: its config cannot be read ({_line(error)}).") from error
    if not whole:
        raise ValueError(f"{path} is no run's of this package: its config names no method or seed.")
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int):
            shown = "null" if number is None else repr(number)
            raise ValueError(f"{path}: {name} is {shown}; a run's is a whole number.")
    assert isinstance(cfg, DictConfig)
    return cfg


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def find(paths: Sequence[Path]) -> list[Run]:
    """The runs in these folders: each is a run's own, or holds runs at any depth (a sweep)."""
    found, broken = survey(paths)
    for sentence in broken.values():
        raise ValueError(sentence)
    return found


def survey(paths: Sequence[Path]) -> tuple[list[Run], dict[Path, str]]:
    """The runs in these folders, and by folder a sentence on each run that cannot be read."""
    found: list[Run] = []
    broken: dict[Path, str] = {}
    seen: set[Path] = set()
    for path in paths:
        if not path.is_dir():
            raise ValueError(f"{path} is not a folder; give the folder of a run or of a sweep.")
        folders = [path] if _is_run(path) else _below(path)
        if not folders:
            raise ValueError(f"{path} holds no run: no folder below it has {CONFIG} or {SUMMARY}.")
        for folder in folders:
            if folder.resolve() in seen:
                continue
            seen.add(folder.resolve())
            try:
                found.append(load(folder))
            except ValueError as error:
                broken[folder] = str(error)
    return found, broken


def _is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in MARKS)


def _below(folder: Path) -> list[Path]:
    inner = {path.parent for path in folder.rglob(SUMMARY)}
    inner |= {path.parent.parent for path in folder.rglob(CONFIG)}
    return sorted(inner, key=_natural)


def _natural(path: Path) -> list[tuple[int, str]]:
    """Order that puts job 10 of a sweep behind job 9."""
    numbers = ((part.split("_")[0], part) for part in path.parts)
    return [(int(lead) if lead.isdigit() else -1, part) for lead, part in numbers]
