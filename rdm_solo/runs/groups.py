"""Group runs by setting; compute means and ranges over the seeds of a setting."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rdm_solo.ground.errors import UserError
from rdm_solo.runs.folder import Run
from rdm_solo.runs.saved_config import exponent


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
    runs: tuple[Run, ...]
    suffix: str = ""  # end of the label: options that distinguish settings of one method and filter

    @property
    def first(self) -> Run:
        return self.runs[0]

    @property
    def method(self) -> str:
        return self.first.description.label

    @property
    def family(self) -> str:
        """The filter, with p for its exponent, and the suffix; empty if there is neither."""
        run, chosen = self.first, self.first.chosen_filter
        p = exponent(chosen.p) if run.p is None else "p" if chosen.formula("p") else ""
        learnable = "" if chosen.absent else "learnable predictor"
        text = learnable if chosen.unchanged else run.filter_text(p)
        return f"{text}{self.suffix}".strip()

    def over_epochs(self, column: str) -> Curve:
        """Return a column of ``metrics.csv`` over the epochs."""
        return curve_of(counted_runs(self), column)

    def last(self, column: str) -> list[float]:
        """Return the counted runs' values in the last epoch that measured the column."""
        return latest(counted_runs(self), column)[1]

    def spectrum(self) -> tuple[int, dict[str, np.ndarray]]:
        """Return the last measured epoch and its arrays ``(seeds, k)``; 0 and {} if none."""
        measured = [run.spectra for run in counted_runs(self) if "lam_target" in run.spectra]
        measured = [spectra for spectra in measured if len(spectra["epoch"])]
        if not measured:
            return 0, {}
        last = max(spectra["epoch"][-1] for spectra in measured)
        latest = [spectra for spectra in measured if spectra["epoch"][-1] == last]
        names = set.intersection(*map(set, latest))
        return int(last), {name: np.stack([s[name][-1] for s in latest]) for name in names}


def counted_runs(group: Group) -> list[Run]:
    """Return the runs that count in means, bands and n: those with the most epochs in the group.

    Diverged runs count only if all runs diverged. :func:`uncounted_runs` returns the others.
    """
    candidates = [run for run in group.runs if run.diverged is None] or group.runs
    most = max(run.epochs for run in candidates)
    return [run for run in candidates if run.epochs == most]


def uncounted_runs(group: Group) -> list[Run]:
    """Return the runs that diverged or have fewer epochs than the counted runs."""
    counted = counted_runs(group)
    return [run for run in group.runs if not any(run is other for other in counted)]


def diverged(group: Group) -> bool:
    """Return whether all runs of a setting diverged."""
    return all(run.diverged is not None for run in group.runs)


def judged_runs(group: Group) -> list[Run]:
    """Return the runs that verdicts are based on: counted runs and diverged runs."""
    return [*counted_runs(group), *(r for r in uncounted_runs(group) if r.diverged is not None)]


def latest(runs: Sequence[Run], column: str) -> tuple[int, list[float]]:
    """Return the last epoch in which any run measured a column, and its finite values there."""
    epoch = max((run.last_measured(column) for run in runs), default=0)
    values = [run.last(column) for run in runs if run.last_measured(column) == epoch]
    return epoch, [value for value in values if math.isfinite(value)]


def format_latest(runs: Sequence[Run], column: str, digits: int) -> str:
    """Format the last values over seeds with :func:`mean_std`.

    The text names the epoch if it is not the last, and n if a run lacks a finite value. Zeros have
    no standard deviation.
    """
    epoch, values = latest(runs, column)
    notes = [f"epoch {epoch}"] if epoch < max(run.last_epoch for run in runs) else []
    notes += [f"n = {len(values)}"] if len(values) < len(runs) else []
    text = mean_std(values if any(round(v, digits) for v in values) else values[:1], digits)
    return text + (f" ({', '.join(notes)})" if values and notes else "")


def mean_std(values: Sequence[float], digits: int) -> str:
    """Format mean ± standard deviation; a single value as it is, no value as a dash.

    >>> mean_std([1.0, 2.0, 3.0], 1), mean_std([2.0], 2), mean_std([], 1)
    ('2.0 ± 1.0', '2.00', '–')
    """
    if not values:
        return "–"
    mean = f"{round(statistics.fmean(values), digits) + 0.0:.{digits}f}"  # + 0.0 turns -0 into 0
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


def text_table(
    groups: Sequence[Group], head: Sequence[str], cells: Callable[[Group], Sequence[str]]
) -> str:
    """Return a text table with a row per setting, and a line for each run that is not counted."""
    rows = [["setting", "n", *head]]
    rows += [[group.label, str(len(counted_runs(group))), *cells(group)] for group in groups]
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    behind = [run for group in groups for run in uncounted_runs(group)]
    lines += [f"not counted: {run_name(run)} ({run.progress})" for run in behind]
    return "\n".join(lines)


def curve_of(runs: Sequence[Run], column: str) -> Curve:
    """Return mean and range of a column in each epoch."""
    tables = [dict(zip(run.metrics.get("epoch", ()), run.metrics.get(column, ()))) for run in runs]
    measured = sorted({e for table in tables for e, value in table.items() if np.isfinite(value)})
    stack = [[table.get(epoch, np.nan) for epoch in measured] for table in tables]
    return over_seeds(np.array(measured, dtype=int), np.array(stack))


def over_seeds(x: np.ndarray, stack: np.ndarray) -> Curve:
    """Return the curve of values ``(seeds, len(x))`` over seeds, ignoring NaN.

    >>> over_seeds(np.array([1, 2]), np.array([[2.0, 5.0], [4.0, np.nan]])).mean
    array([3., 5.])
    """
    finite = np.ma.masked_invalid(stack)  # NaN where no seed has a value
    ends = finite.min(axis=0), finite.max(axis=0)
    mean, low, high = (np.ma.filled(each, np.nan) for each in (finite.mean(axis=0), *ends))
    return Curve(x, mean, low, high)


def by_setting(runs: Sequence[Run]) -> list[Group]:
    """Group runs by setting; options that differ, or a number, are added to equal labels."""
    if not runs:
        raise UserError("There is no run to draw; pass folders of runs that have started.")
    several_datasets = len({run.dataset for run in runs}) > 1
    by_label: dict[str, dict[str, list[Run]]] = {}
    for run in runs:
        label = f"{run.label}, {run.dataset}" if several_datasets else run.label
        key = repr(sorted(run.setting.items()))
        by_label.setdefault(label, {}).setdefault(key, []).append(run)
    groups: list[Group] = []
    used: set[str] = set()
    for label, keys in by_label.items():
        suffixes = _suffixes([members[0].setting for members in keys.values()])
        for suffix, members in zip(suffixes, keys.values()):
            unique = label + suffix
            if unique in used:
                unique += f" #{len(groups) + 1}"
            used.add(unique)
            groups.append(Group(unique, tuple(members), unique.removeprefix(label)))
    return groups


def started_groups(runs: Sequence[Run]) -> list[Group]:
    """Group the runs that finished an epoch or diverged; drop groups without a finished epoch."""
    started = [run for run in runs if run.epochs or run.diverged]
    return [g for g in by_setting(started) if counted_runs(g)[0].epochs] if started else []


def _suffixes(settings: list[dict[str, str]]) -> list[str]:
    """Return how each setting differs from the others, such as `` (last_bn=False)``."""
    if len(settings) == 1:
        return [""]
    names = dict.fromkeys(name for setting in settings for name in setting)
    differing = [name for name in names if len({s.get(name) for s in settings}) > 1][:3]
    words = [
        ", ".join(f"{n.rpartition('.')[2]}={setting.get(n, 'unset')}" for n in differing)
        for setting in settings
    ]
    return [f" ({text})" for text in words]


def run_name(run: Run) -> str:
    """Return the label and the seed."""
    return f"{run.label}, seed {run.seed}"
