"""Read a run's folder, and find the runs below a sweep's folder."""

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf

from rdm_solo.collapse.health import Outcome, health
from rdm_solo.collapse.rules import Bounds, MeasuredEpoch
from rdm_solo.ground.errors import UserError, first_line
from rdm_solo.ground.values import check_integer, finite
from rdm_solo.methods import descriptions
from rdm_solo.methods.chosen_filter import ChosenFilter
from rdm_solo.runs import files, metrics_file, ownership, spectra_files
from rdm_solo.runs.files import CONFIG, LINEAR, METRICS, SPECTRA, SUMMARY
from rdm_solo.runs.saved_config import config_path, run_config
from rdm_solo.runs.settings import as_texts, options, settings


@dataclass(frozen=True, eq=False)
class RunFolder:
    """The content of a run's folder. Missing parts are empty, and ``missing`` has the reasons.

    ``metrics`` has the columns of ``metrics.csv``; NaN means not measured or not finite, and
    ``measured`` marks what was measured. ``spectra`` has arrays whose first axis is
    ``spectra["epoch"]``. ``linear`` has the linear evaluations by kind. Epochs count from 1.

    ``untrained`` has the values from before the first step. ``diverged`` is the epoch in which
    training diverged; ``metrics`` and ``spectra`` end before it.
    """

    folder: Path
    config: DictConfig
    metrics: dict[str, np.ndarray]
    spectra: dict[str, np.ndarray] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    diverged: int | None = None
    measured: dict[str, np.ndarray] = field(default_factory=dict)
    linear: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    untrained: Mapping[str, float] = field(default_factory=dict)
    failure: str = ""  # why the run failed, as it recorded it

    @property
    def watched(self) -> bool:
        """Whether ``Watch`` wrote the folder, not the train command."""
        return isinstance(self.config.get("watched"), Mapping)

    @property
    def method(self) -> str:
        return str(self.config.method.name)

    @property
    def filter(self) -> str:
        """The name of the filter's option, such as ``target_pow``."""
        return self.chosen_filter.label

    @cached_property
    def chosen_filter(self) -> ChosenFilter:
        return ChosenFilter.from_config(self.config)

    @cached_property
    def description(self) -> descriptions.Method:
        """The method's description, which is minimal for a watched loop or an unknown method."""
        unknown = descriptions.Method(self.method, self.method, "", asymmetry="unknown")
        if self.watched:
            watched = self.config.watched
            lags, leads = watched.get("target") is not None, watched.get("leads")
            return replace(
                unknown,
                asymmetry="" if watched.get("predictor") is False else "unknown",
                momentum=lags,
                gap_explanation=descriptions.LAG if lags else "",
                should_lead=leads if isinstance(leads, bool) else None,
            )
        method = descriptions.METHODS.get(self.method, unknown)
        if OmegaConf.select(self.config, "method.loss", default="cosine") == "cosine":
            return method
        return replace(method, loss_minimum=None)

    @property
    def dataset(self) -> str:
        return str(self.config.dataset.name)

    @property
    def seed(self) -> int:
        return int(self.config.seed)

    @property
    def p(self) -> float | None:
        """The exponent; None if there is none or if it follows a schedule."""
        return finite(self.config.get("p"))

    @property
    def derived(self) -> Mapping[str, Any]:
        """The values that the run derived from its config; empty until it has a summary."""
        return self.summary.get("derived") or {}

    @property
    def filter_batch(self) -> Any:
        """The number of rows in a filter's batch, over all processes; None if it is unknown."""
        return self.derived.get("filter_batch", self.config.get("batch_size"))

    @property
    def epochs(self) -> int:
        """The number of finished epochs."""
        return len(self.metrics["epoch"])

    @property
    def progress(self) -> str:
        """The progress, such as ``3 of 30 epochs``, or the epoch in which the run diverged."""
        if self.diverged is not None:
            return f"diverged in epoch {self.diverged}"
        planned = self.config.get("max_epochs")
        if planned is None:  # unknown for some watched loops
            return f"{self.epochs} epochs"
        return f"{self.epochs} of {planned} epochs"

    @cached_property
    def label(self) -> str:
        """Method and filter, such as ``SimSiam, target filter σ^-0.5``; equal for all seeds."""
        if self.chosen_filter.unchanged:
            return self.description.label
        return f"{self.description.label}, {self.chosen_filter.text()}"

    @cached_property
    def setting(self) -> dict[str, str]:
        """The options that define the setting (:mod:`rdm_solo.runs.settings`), as text.

        Seed, paths and speed are left out. As text -1 equals -1.0, and 0.3 equals 0.1 + 0.2.
        """
        return as_texts(settings(self.config)) | self.watched_config

    @cached_property
    def watched_config(self) -> dict[str, str]:
        """The options that a user passed to ``Watch``, as text, without the seed."""
        config = OmegaConf.select(self.config, "watched.config")
        if not isinstance(config, DictConfig):
            return {}
        plain: Any = OmegaConf.to_container(config)
        texts = as_texts(dict(options(plain)))
        texts.pop("seed", None)  # the runs of a setting differ in it
        return texts

    @property
    def dimensions(self) -> int:
        """The dimension of the outputs that collapse is judged on; 0 if it is unknown."""
        return int(self.spectra.get("dimensions", np.zeros(1)).max(initial=0))

    @property
    def features_dimensions(self) -> int:
        """The dimension of the backbone's features; 0 if they were not measured."""
        return int(self.spectra.get("features_dimensions", np.zeros(1)).max(initial=0))

    @cached_property
    def measured_epochs(self) -> list[MeasuredEpoch]:
        """What the collapse rules read of each epoch; epoch 0 is the untrained network."""
        classes = self.derived.get("num_classes")
        classes = classes or OmegaConf.select(self.config, "dataset.num_classes")
        epochs = []
        if self.untrained:
            epochs.append(MeasuredEpoch.read(self.untrained, 0, self.dimensions, classes))
        for values in zip(*self.metrics.values()):
            row = dict(zip(self.metrics, values))
            epochs.append(MeasuredEpoch.read(row, int(row["epoch"]), self.dimensions, classes))
        return epochs

    @cached_property
    def health(self) -> Outcome:
        """Whether the run is alive, by the default bounds after its own warm-up."""
        warmup = float(OmegaConf.select(self.config, "scheduler.warmup_epochs", default=0))
        bounds = Bounds(warmup=warmup, gap_epochs=None)
        return health(self.measured_epochs, bounds, self.diverged)

    @property
    def last_epoch(self) -> int:
        """The number of the last epoch; 0 if none has finished."""
        return int(self.metrics["epoch"][-1]) if self.epochs else 0

    def has_spectra(self) -> bool:
        """Return whether the run has the spectra of at least one epoch."""
        return "lam_target" in self.spectra and len(self.spectra["epoch"]) > 0

    def has_values(self, column: str) -> bool:
        """Return whether a column has a finite value in any epoch."""
        return bool(np.isfinite(self.metrics.get(column, np.empty(0))).any())

    def last(self, column: str) -> float:
        """Return a column's value in the last epoch that measured it; see :meth:`latest`."""
        _, value = self.latest(column)
        return value

    def latest(self, column: str) -> tuple[int, float]:
        """Return the last epoch that measured a column, and its value: NaN if it is not finite.

        The epoch is 0 if the column was never measured.
        """
        values = self.metrics.get(column, np.empty(0))
        rows = np.flatnonzero(self.measured.get(column, np.isfinite(values)))
        if not len(rows):
            return 0, math.nan
        epoch = int(self.metrics["epoch"][rows[-1]])
        value = finite(values[rows[-1]])
        return epoch, math.nan if value is None else value

    def spectrum(self, epoch: int | None = None) -> dict[str, np.ndarray]:
        """Return the arrays of one measured epoch, by default the last."""
        if not self.has_spectra():
            raise UserError(f"{self.folder} has no measured spectra; were the diagnostics on?")
        epochs = self.spectra["epoch"].tolist()
        if epoch is None:
            epoch = epochs[-1]
        if epoch not in epochs:
            raise UserError(f"{self.folder} has no spectra of epoch {epoch}, only of {epochs}.")
        row = epochs.index(epoch)
        return {name: array[row] for name, array in self.spectra.items()}


def load(folder: Path) -> RunFolder:
    """Load a run, finished or not; raise UserError if the folder holds none."""
    config = checked_config(folder)
    missing: list[str] = []

    def read(name: str, reader: Callable[[Path], Any], default: Any) -> Any:
        """Return a part of the folder; note in ``missing`` why it cannot be read."""
        try:
            return reader(folder)
        except FileNotFoundError:
            return default
        except (OSError, ValueError, TypeError, csv.Error) as error:
            reason = error.reason if isinstance(error, files.Unreadable) else first_line(error)
            missing.append(f"{name} cannot be read ({reason})")
            return default

    summary = read(SUMMARY, partial(files.read_object, name=SUMMARY), {})
    linear = read(LINEAR, partial(files.read_object, name=LINEAR), {})
    table = read(METRICS, metrics_file.read, metrics_file.Table({"epoch": np.empty(0)}, {}))
    spectra, broken = read(SPECTRA, spectra_files.read, ({}, []))
    metrics, measured = table.columns, table.measured
    diverged = table.diverged
    recorded = summary.get("diverged")
    if recorded and (metrics["epoch"] < recorded["epoch"]).all():  # not resumed since
        diverged = diverged or recorded["epoch"]
    if diverged is not None:
        measured = _before(diverged, measured, metrics["epoch"])
        metrics = _before(diverged, metrics, metrics["epoch"])
        if spectra:
            spectra = _before(diverged, spectra, spectra["epoch"])
    done = len(metrics["epoch"])
    missing += _shortcomings(folder, config, summary, done, diverged)
    for name in broken:
        missing.append(f"{name} cannot be read and is left out")
    if done and not spectra:
        missing.append("no spectra (diagnostics were off?)")
    return RunFolder(
        folder,
        config,
        metrics=metrics,
        spectra=spectra,
        summary=summary,
        missing=tuple(missing),
        diverged=diverged,
        measured=measured,
        linear=linear,
        untrained=table.untrained,
        failure=ownership.failure(folder) or "",
    )


def _shortcomings(
    folder: Path, config: DictConfig, summary: Mapping[str, Any], done: int, diverged: int | None
) -> list[str]:
    """Return why a run is incomplete; an empty list if it is complete."""
    planned = config.get("max_epochs", 0)
    failure = ownership.failure(folder)
    reasons = []
    if failure:
        reasons.append(f"it failed: {failure.removesuffix('.')}")
    elif diverged:
        reasons.append(f"it diverged in epoch {diverged} (values from that epoch on are left out)")
    if not done and not diverged:
        reasons.append("no epoch has finished")
    elif 0 < done < planned:
        reasons.append(f"{done} of {planned} epochs")
    if done and not failure and not (folder / SUMMARY).exists():
        reasons.append("the run is still training, or was killed")
    # Watch writes a preliminary summary after each epoch.
    elif summary.get("ended") is False and not 0 < planned <= done:
        reasons.append("the watch was not closed (its loop is still running, or was killed)")
    return reasons


def _before(
    epoch: int, arrays: Mapping[str, np.ndarray], epochs: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the rows before an epoch; ``epochs`` has the epoch of each row."""
    return {name: array[epochs < epoch] for name, array in arrays.items()}


def checked_config(folder: Path) -> DictConfig:
    """Return a run's config; raise UserError if it is not the config of a run."""
    config = run_config(folder)
    with files.prefix_errors(config_path(folder)):
        for part in ("method", "filter", "dataset"):
            name = OmegaConf.select(config, f"{part}.name")
            if not isinstance(name, str) or not name.isprintable():
                raise UserError(f"it is not the config of a run of this package: no {part}.name.")
        check_integer("seed", config.get("seed"), maximum=2**53)
    return config


def scan(paths: Sequence[Path]) -> tuple[list[RunFolder], dict[Path, str]]:
    """Return the runs in these folders, and the error of each folder that cannot be read.

    Each folder is a run's or contains runs at any depth.
    """
    folders: dict[Path, Path] = {}
    for path in paths:
        if not path.is_dir():
            raise UserError(f"{path} is not a folder; pass the folder of a run or of a sweep.")
        inner = [path] if (path / CONFIG).is_file() else _runs_below(path)
        if not inner:
            raise UserError(f"{path} holds no run: no folder below it has {CONFIG}.")
        for folder in inner:
            folders.setdefault(folder.resolve(), folder)
    runs: list[RunFolder] = []
    broken: dict[Path, str] = {}
    for folder in folders.values():
        try:
            runs.append(load(folder))
        except UserError as error:
            broken[folder] = str(error)
    return runs, broken


def _runs_below(folder: Path) -> list[Path]:
    """Return the run folders below a folder; a sweep's jobs are in numeric order."""
    folders = []
    for config in folder.rglob(CONFIG):
        run = config.parent.parent
        if ".old-" not in run.name:  # a backup of an overwritten run
            folders.append(run)
    return sorted(folders, key=_numeric_order)


def _numeric_order(path: Path) -> list[tuple[int, str]]:
    """Return a key that sorts names such as ``2_simsiam`` and ``10_simsiam`` by their number."""
    key = []
    for part in path.parts:
        number, _, _ = part.partition("_")
        key.append((int(number) if number.isdigit() else -1, part))
    return key
