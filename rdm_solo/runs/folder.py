"""What a run has left in its folder, read back; and the runs below a sweep's folder."""

import csv
import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf

from rdm_solo.filters.schedules import as_schedule
from rdm_solo.messages import UserError, check_number, check_whole, finite, first_line, shown
from rdm_solo.methods import descriptions
from rdm_solo.methods.chosen_filter import ChosenFilter
from rdm_solo.runs import failures, linear_file, metrics_file, reading, spectra_files
from rdm_solo.runs.files import CONFIG, LINEAR, METRICS, PLANNED, SPECTRA, SUMMARY, is_aside
from rdm_solo.runs.labels import exponent
from rdm_solo.runs.saved_config import run_config, source

ABSENT = object()


@dataclass(frozen=True, eq=False)
class Run:
    """One run's folder. What is not there is empty, and named in ``missing``.

    ``metrics`` has the columns of ``metrics.csv`` (NaN: not measured, or not finite; ``measured``
    tells them apart), ``spectra`` the arrays of its spectra, whose first axis are the epochs in
    ``spectra["epoch"]``, ``linear`` its linear evaluations by kind. Epochs count from 1, whichever
    version wrote the folder.

    ``diverged`` is the epoch in which training diverged. Neither it nor a later one is in
    ``metrics`` or ``spectra``: earlier versions went on, and wrote rows of NaN.
    """

    folder: Path
    config: DictConfig
    metrics: dict[str, np.ndarray] = field(default_factory=dict)
    spectra: dict[str, np.ndarray] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    diverged: int | None = None
    measured: dict[str, np.ndarray] = field(default_factory=dict)
    linear: dict[str, list[linear_file.Record]] = field(default_factory=dict)

    @property
    def method(self) -> str:
        return str(self.config.method.name)

    @property
    def filter(self) -> str:
        return self.chosen_filter.label

    @property
    def chosen_filter(self) -> ChosenFilter:
        return ChosenFilter.of(self.config)

    @property
    def described(self) -> descriptions.Method:
        """Its method's description; of a method that this version does not know, or that was
        watched in a loop of somebody's own, a bare one."""
        unknown = descriptions.Method(self.method, self.method, "", asymmetry="unknown")
        watched = self.config.get("watched")
        if not isinstance(watched, Mapping):
            return descriptions.METHODS.get(self.method, unknown)
        lags, leads = watched.get("target") is not None, watched.get("leads")
        return dataclasses.replace(
            unknown,
            asymmetry="unknown" if watched.get("predictor") is not False else "",
            momentum=lags,
            gap_comes_from=descriptions.LAG if lags else "",
            should_lead=leads if isinstance(leads, bool) else None,  # earlier versions: not said
        )

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
        return finite(p)

    @property
    def filter_batch(self) -> int | None:
        """Rows that its filter works on: those of all processes together."""
        for derived in (self.config.get("derived"), self.summary.get("derived")):
            rows = derived.get("filter_batch") if isinstance(derived, Mapping) else None
            if isinstance(rows, int) and not isinstance(rows, bool) and 0 < rows < 2**31:
                return rows
        batch = self.config.get("batch_size")
        return None if batch is None else int(batch)

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

    @property
    def last_epoch(self) -> int:
        """The number of the last epoch; 0 where none has ended."""
        return int(self.metrics["epoch"][-1]) if self.epochs else 0

    def last(self, column: str) -> float:
        """A column's value in :meth:`last_measured`; NaN without one, or where it is not finite."""
        values = self.metrics.get(column, np.empty(0))
        found = [float(values[row]) for row in self._rows(column)[-1:]]
        return found[0] if found and math.isfinite(found[0]) else math.nan

    def last_measured(self, column: str) -> int:
        """The last epoch in which a column was measured; 0 where it never was."""
        rows = self._rows(column)
        return int(self.metrics["epoch"][rows[-1]]) if len(rows) and self.epochs else 0

    def spectrum(self, epoch: int | None = None) -> dict[str, np.ndarray]:
        """The arrays of one measured epoch, by default the last; ValueError where there is none."""
        epochs = self.spectra.get("epoch", np.empty(0, dtype=int)).tolist()
        if not epochs:
            raise UserError(f"{self.folder} has no measured spectra; were the diagnostics on?")
        if epoch is not None and epoch not in epochs:
            near = min(epochs, key=lambda known: abs(known - epoch))
            raise UserError(
                f"{self.folder} has no spectra of epoch {epoch}; the nearest are of epoch {near}."
            )
        row = -1 if epoch is None else epochs.index(epoch)
        return {name: array[row] for name, array in self.spectra.items()}

    def _rows(self, column: str) -> np.ndarray:
        values = self.metrics.get(column, np.empty(0))
        return np.flatnonzero(self.measured.get(column, np.isfinite(values)))


def load(folder: Path) -> Run:
    """The run in that folder; ValueError where there is none.

    A run that goes on, or broke off, is loaded as far as it went.
    """
    config = checked_config(folder)
    metrics_file.folder_format(folder)  # refuses one of a later version
    missing: list[str] = []

    def found(name: str, read: Callable[[Path], Any], nothing: Any) -> Any:
        try:
            return read(folder)
        except FileNotFoundError:
            return nothing
        except (OSError, ValueError, TypeError, csv.Error) as error:
            missing.append(f"{name} cannot be read ({_line(error)})")
            return nothing

    summary = found(SUMMARY, _summary, {})
    linear = found(LINEAR, linear_file.read, {})
    table = found(METRICS, metrics_file.read, metrics_file.Table({}, {}))
    diverged = table.diverged or _diverged(summary, table.columns)
    metrics, measured = (_before(diverged, part, table.columns) for part in table[:2])
    done, asked = len(metrics.get("epoch", ())), config.get("max_epochs", 0)
    if done:
        _check_exponent(config, folder)
    left = [name for name in (SUMMARY, SPECTRA) if (folder / name).exists()]
    if table.cut:
        missing.append(f"the last row of {METRICS} is cut off and left out")
    failed = failures.of(folder)
    if diverged and f"diverged in epoch {diverged}" not in (failed or ""):
        missing.append(f"it diverged in epoch {diverged} (values from there on are left out)")
    if not (folder / METRICS).exists() and not diverged:
        why = f", although {left[0]} is there (was it removed, or not copied?)" if left else ""
        missing.append(f"no {METRICS}{why or ': no epoch has ended'}")
    elif metrics and "epoch" not in metrics:
        missing.append(f"{METRICS} has no column epoch")
    elif not done and not diverged and not any(said.startswith(METRICS) for said in missing):
        missing.append(f"{METRICS} has no whole row: no epoch has ended")
    if 0 < done < asked:
        missing.append(f"{done} of {asked} epochs")
    if failed:
        missing.append(f"it failed: {failed.removesuffix('.')}")
    elif done and SUMMARY not in left:
        missing.append(f"no {SUMMARY} (the run goes on, or broke off)")
    elif not was_closed(summary) and not 0 < asked <= done:
        missing.append("the watch was not closed (the run goes on, or broke off)")
    spectra, broken = found(SPECTRA, spectra_files.read, ({}, []))
    spectra = _before(diverged, spectra, spectra)
    missing += [f"{name} cannot be read and is left out" for name in broken]
    if done and not spectra:
        missing.append("no spectra (diagnostics were off?)")
    lacks = tuple(missing)
    return Run(folder, config, metrics, spectra, summary, lacks, diverged, measured, linear)


def was_closed(summary: Mapping[str, Any]) -> bool:
    """Whether a summary is the last of its run: a watch writes one after each epoch, and says when
    it is closed; other runs write theirs at the end."""
    return summary.get("ended") is not False


def diverged_in(folder: Path) -> int | None:
    """The epoch in which the run in that folder diverged; None where nothing says so."""
    try:
        return load(folder).diverged
    except ValueError:  # what cannot be read says nothing
        return None


def _diverged(summary: dict[str, Any], metrics: dict[str, np.ndarray]) -> int | None:
    """The epoch that the summary names, unless the run has gone on since."""
    said = summary.get("diverged")
    epoch = said.get("epoch") if isinstance(said, dict) else None
    if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 1:
        return None
    return None if (metrics.get("epoch", np.empty(0)) >= epoch).any() else epoch


def _before(
    diverged: int | None, arrays: dict[str, np.ndarray], numbered: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The epochs before that one, of arrays whose first axis are those in ``numbered["epoch"]``."""
    if diverged is None or "epoch" not in numbered:
        return arrays
    return {name: array[numbered["epoch"] < diverged] for name, array in arrays.items()}


def _summary(folder: Path) -> dict[str, Any]:
    """What summary.json says, without values that are not of their kinds."""
    said = reading.read_object(folder, SUMMARY)
    found: dict[str, Any] = {
        name: value
        for name, value in said.items()
        if isinstance(value, SUMMARY_KINDS.get(name, object))
    }
    for table in ("last", "derived", "versions"):
        if table in found:
            found[table] = {k: v for k, v in found[table].items() if _plain(v)}
    found["warnings"] = [
        {name: value for name, value in entry.items() if _plain(value)}
        for entry in found.get("warnings") or []
        if isinstance(entry, dict)
    ]
    if "format" not in found:  # epochs counted from 0
        for entry in [found.get("last"), *found["warnings"]]:
            if isinstance(entry, dict) and isinstance(entry.get("epoch"), (int, float)):
                entry["epoch"] += 1
    return found


SUMMARY_KINDS = {"last": dict, "derived": dict, "versions": dict, "warnings": list, "device": str}


def _plain(value: Any) -> bool:
    huge = isinstance(value, int) and value.bit_length() > 64
    return value is None or (isinstance(value, (str, int, float)) and not huge)


def checked_config(folder: Path) -> DictConfig:
    """A run's config, whose main options are of their kinds; ValueError names the file at fault."""
    path = source(folder)
    with reading.named(path):
        config = run_config(folder)
        named = all(OmegaConf.select(config, f"{name}.name") for name in NAMED)
        if not named or "seed" not in config:
            raise UserError(
                "it is not the config of a run of this package: it names no method or seed."
            )
        for name, (check, *limits) in KINDS.items():
            value = OmegaConf.select(config, name, default=ABSENT)
            if value is not ABSENT:
                check(name, value, *limits)
    return config


def _check_exponent(config: DictConfig, folder: Path) -> None:
    """Refuse a p that no run can have; of a run that was refused it may be anything."""
    p = config.get("p")
    if p is not None:
        with reading.named(source(folder)):
            p = OmegaConf.to_container(p) if OmegaConf.is_config(p) else p
            as_schedule(p, epochs=config.get("max_epochs"))


def _check_word(name: str, value: Any, alternative: Any = ABSENT) -> None:
    word = isinstance(value, str) and value.isprintable() and 0 < len(value) < 200
    if not word and value is not alternative:
        raise UserError(f"{name} must be a word, got {shown(value)}.")


def _check_options(name: str, value: Any) -> None:
    if value is not None and not OmegaConf.is_dict(value):
        raise UserError(f"{name} must be options with names, got {shown(value)}.")


# Options that pages and tables read, and what checks them.
NAMED = ("method", "filter", "dataset")
KINDS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("seed", "max_epochs", "batch_size"), (check_whole, 0, 2**53)),
    **{f"{name}.name": (_check_word,) for name in NAMED},
    **{f"filter.{name}": (_check_word, None) for name in ("branch", "function")},
    **dict.fromkeys(("method.kwargs", "backbone", "scheduler", "trainer"), (_check_options,)),
    "scheduler.warmup_epochs": (check_number,),
}


def _line(error: Exception) -> str:
    return error.reason if isinstance(error, reading.Unreadable) else first_line(error)


def find(paths: Sequence[Path]) -> list[Run]:
    """The runs in these folders: each is a run's own, or holds runs at any depth (a sweep)."""
    found, broken = survey(paths)
    for sentence in broken.values():
        raise UserError(sentence)
    return found


def survey(paths: Sequence[Path]) -> tuple[list[Run], dict[Path, str]]:
    """The runs in these folders, and by folder a sentence on each run that cannot be read."""
    folders: dict[Path, Path] = {}
    for path in paths:
        if not path.is_dir():
            raise UserError(f"{path} is not a folder; give the folder of a run or of a sweep.")
        inside = [path] if is_run(path) else _below(path)
        if not inside:
            raise UserError(f"{path} holds no run: no folder below it has {CONFIG} or {SUMMARY}.")
        for folder in inside:
            folders.setdefault(folder.resolve(), folder)
    found: list[Run] = []
    broken: dict[Path, str] = {}
    for folder in folders.values():
        try:
            found.append(load(folder))
        except ValueError as error:
            broken[folder] = str(error)
    return found, broken


def is_run(folder: Path) -> bool:
    """Whether the folder is a run's own."""
    return (folder / CONFIG).is_file() or (folder / SUMMARY).is_file()


def _below(folder: Path) -> list[Path]:
    """The runs below."""
    inner = {path.parent for path in folder.rglob(SUMMARY)}
    inner |= {path.parent.parent for path in folder.rglob(CONFIG)}
    inner = {path for path in inner if PLANNED not in path.relative_to(folder).parts}
    return in_order(path for path in inner if not is_aside(path))


def in_order(paths: Iterable[Path]) -> list[Path]:
    """Folders of runs as a list has them, job 10 of a sweep behind job 9.

    >>> [path.name for path in in_order([Path("s/10_byol"), Path("s/9_byol")])]
    ['9_byol', '10_byol']
    """

    def order(path: Path) -> list[tuple[int, str]]:
        numbers = ((part.split("_")[0], part) for part in path.parts)
        return [(int(lead) if lead.isdigit() else -1, part) for lead, part in numbers]

    return sorted(paths, key=order)
