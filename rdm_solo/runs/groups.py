"""Group runs by setting; compute means and ranges over the seeds of a setting."""

import itertools
import math
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from rdm_solo.runs.folder import RunFolder
from rdm_solo.runs.spectra_files import stack


@dataclass(frozen=True)
class Curve:
    """Mean, minimum and maximum over seeds at each x."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


@dataclass(frozen=True, eq=False)
class Group:
    """The runs of one setting, which differ in their seeds, under a unique label."""

    label: str
    runs: tuple[RunFolder, ...]
    suffix: str = ""  # end of the label: options that distinguish settings of one method and filter

    @property
    def first(self) -> RunFolder:
        return self.runs[0]

    @property
    def method(self) -> str:
        return self.first.description.label

    @property
    def filter(self) -> str:
        """The filter in words, with p for its exponent; empty if there is none."""
        chosen = self.first.chosen_filter
        if chosen.absent:
            return ""
        if chosen.unchanged:
            return "learnable predictor"
        if self.first.p is None:
            return chosen.text()
        return chosen.text("p" if chosen.formula("p") else "")

    @property
    def family(self) -> str:
        """The filter and the suffix; settings of one family differ in p."""
        return f"{self.filter}{self.suffix}".strip()

    @cached_property
    def counted(self) -> list[RunFolder]:
        """The runs that count in means, bands and n: those with the most epochs.

        Diverged runs count only if all runs diverged.
        """
        candidates = [run for run in self.runs if run.diverged is None] or self.runs
        most = max(run.epochs for run in candidates)
        return [run for run in candidates if run.epochs == most]

    @property
    def uncounted(self) -> list[RunFolder]:
        """The runs that diverged or have fewer epochs than the counted runs."""
        return [run for run in self.runs if run not in self.counted]

    @property
    def judged(self) -> list[RunFolder]:
        """The runs that verdicts are based on: counted runs and diverged runs."""
        diverged = [run for run in self.uncounted if run.diverged is not None]
        return [*self.counted, *diverged]

    @property
    def diverged(self) -> bool:
        """Whether all runs diverged."""
        return self.counted[0].diverged is not None

    def last(self, column: str) -> list[float]:
        """Return the counted runs' values in the last epoch that measured the column."""
        _, values = latest(self.counted, column)
        return values

    def spectrum(self) -> tuple[int, dict[str, np.ndarray]]:
        """Return the last measured epoch and its arrays ``(seeds, k)``; 0 and {} if none."""
        spectra = [run.spectrum() for run in self.counted if run.has_spectra()]
        last = max((int(arrays["epoch"]) for arrays in spectra), default=0)
        seeds = [arrays for arrays in spectra if arrays["epoch"] == last]
        return last, stack(seeds)


def latest(runs: Sequence[RunFolder], column: str) -> tuple[int, list[float]]:
    """Return the last epoch in which any run measured a column, and its finite values there.

    The epoch is 0, without values, if no run measured it.
    """
    pairs = [run.latest(column) for run in runs]
    last, _ = max(pairs)
    values = []
    for epoch, value in pairs:
        if epoch == last and math.isfinite(value):
            values.append(value)
    return last, values


def format_latest(runs: Sequence[RunFolder], column: str, digits: int) -> str:
    """Format the last values over seeds with :func:`mean_std`.

    The text names the epoch if it is not the last, and n if a run lacks a finite value.
    """
    epoch, values = latest(runs, column)
    if not values:
        return mean_std(values, digits)
    notes = []
    if epoch < max(run.last_epoch for run in runs):
        notes.append(f"epoch {epoch}")
    if len(values) < len(runs):
        notes.append(f"n = {len(values)}")
    text = mean_std(values, digits)
    if notes:
        text += f" ({', '.join(notes)})"
    return text


def mean_std(values: Sequence[float], digits: int) -> str:
    """Format mean ± standard deviation; a single value as it is, no value as a dash.

    >>> mean_std([1.0, 2.0, 3.0], 1), mean_std([2.0], 2), mean_std([], 1)
    ('2.0 ± 1.0', '2.00', '–')
    """
    if not values:
        return "–"
    mean = round(statistics.fmean(values), digits) + 0.0  # + 0.0 turns -0 into 0
    text = f"{mean:.{digits}f}"
    if len(values) > 1:
        text += f" ± {statistics.stdev(values):.{digits}f}"
    return text


def text_table(
    groups: Sequence[Group], head: Sequence[str], cells: Callable[[Group], Sequence[str]]
) -> str:
    """Return a text table with a row per setting, and a line for each run that is not counted."""
    rows = [["setting", "n", *head]]
    for group in groups:
        n = str(len(group.counted))
        rows.append([group.label, n, *cells(group)])
    lines = aligned(rows)
    for group in groups:
        for run in group.uncounted:
            lines.append(f"not counted: {run_name(run)} ({run.progress})")
    return "\n".join(lines)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a text table.

    >>> aligned([["kNN", "%"], ["a", "50"]])
    ['kNN  %', 'a    50']
    """
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = []
    for row in rows:
        line = "  ".join(map(str.ljust, row, widths))
        lines.append(line.rstrip())
    return lines


def curve_of(runs: Sequence[RunFolder], column: str) -> Curve:
    """Return mean and range of a column in each epoch in which a run has a finite value.

    Epoch 0 is the untrained network.
    """
    x, stack = by_epoch(runs, column)
    measured = np.isfinite(stack).any(axis=0)
    return over_seeds(x[measured], stack[:, measured])


def by_epoch(runs: Sequence[RunFolder], column: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the epochs from 0 and a column's values ``(runs, epochs)``; NaN: not measured."""
    last = max(run.last_epoch for run in runs)
    x = np.arange(last + 1)
    stack = np.full((len(runs), last + 1), np.nan)
    for row, run in zip(stack, runs):
        row[0] = run.untrained.get(column, np.nan)
        if column in run.metrics:
            epochs = run.metrics["epoch"].astype(int)
            row[epochs] = run.metrics[column]
    return x, stack


def over_seeds(x: np.ndarray, stack: np.ndarray) -> Curve:
    """Return the curve of values ``(seeds, len(x))`` over seeds, ignoring NaN.

    >>> over_seeds(np.array([1, 2]), np.array([[2.0, 5.0], [4.0, np.nan]])).mean
    array([3., 5.])
    """
    finite = np.ma.masked_invalid(stack)
    # NaN where no seed has a value.
    mean = finite.mean(axis=0).filled(np.nan)
    low = finite.min(axis=0).filled(np.nan)
    high = finite.max(axis=0).filled(np.nan)
    return Curve(x, mean, low, high)


def by_setting(runs: Sequence[RunFolder]) -> list[Group]:
    """Group runs by setting; options that differ, or a number, are added to equal labels.

    Runs with equal options and the same seed are not averaged: they differ in something that the
    configs do not record. Each run of such a setting is its own group, labelled by its folder.
    """
    datasets = {run.dataset for run in runs}
    by_label: dict[str, dict[str, list[RunFolder]]] = {}
    for run in runs:
        label = run.label
        if len(datasets) > 1:
            label += f", {run.dataset}"
        key = repr(sorted(run.setting.items()))
        by_label.setdefault(label, {}).setdefault(key, []).append(run)
    groups: dict[str, Group] = {}

    def add(label: str, words: Sequence[str], members: Sequence[RunFolder]) -> None:
        suffix = f" ({', '.join(words)})" if words else ""
        # Settings can differ in a fourth option only, or two suffixes can read the same.
        if label + suffix in groups:
            suffix += f" #{len(groups) + 1}"
        unique = label + suffix
        groups[unique] = Group(unique, tuple(members), suffix)

    for label, by_key in by_label.items():
        settings = [members[0].setting for members in by_key.values()]
        differing = _differing(settings)[:3]
        for setting, members in zip(settings, by_key.values()):
            words = []
            for name in differing:
                leaf = name.split(".")[-1]
                words.append(f"{leaf}={setting.get(name, 'unset')}")
            seeds = {run.seed for run in members}
            if len(seeds) == len(members):
                add(label, words, members)
                continue
            for run, name in zip(members, _folder_names(members)):
                add(label, [*words, name], [run])
    return list(groups.values())


def _folder_names(runs: Sequence[RunFolder]) -> list[str]:
    """Return the ends of the folders' paths, long enough to tell them apart."""
    paths = [Path(os.path.abspath(run.folder)).parts for run in runs]
    names: list[str] = []
    for length in range(1, max(map(len, paths)) + 1):
        names = ["/".join(parts[-length:]) for parts in paths]
        if len(set(names)) == len(names):
            break
    return names


def started_groups(runs: Sequence[RunFolder]) -> list[Group]:
    """Group the runs that finished an epoch or diverged; drop groups without a finished epoch."""
    started = [run for run in runs if run.epochs or run.diverged]
    return [group for group in by_setting(started) if group.counted[0].epochs]


def _differing(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the names of the options in which the settings differ, in their order."""
    names = []
    for name in dict.fromkeys(itertools.chain(*settings)):
        if len({setting.get(name, "unset") for setting in settings}) > 1:
            names.append(name)
    return names


def run_name(run: RunFolder) -> str:
    """Return the label and the seed."""
    return f"{run.label}, seed {run.seed}"
