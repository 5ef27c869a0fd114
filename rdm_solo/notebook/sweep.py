"""The runs of a sweep in Python: a row a setting, a row a run, the best setting, figures."""

import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rdm_solo.messages import UserError, listed, suggest
from rdm_solo.notebook.run import Run
from rdm_solo.notebook.tables import of_rows
from rdm_solo.runs import Run as RunFolder
from rdm_solo.runs import survey
from rdm_solo.runs.columns import ACCURACY, LINEAR, charts, check_column, compared
from rdm_solo.runs.folder import is_run
from rdm_solo.runs.groups import Group, begun_groups, counted_runs, judged_runs

if TYPE_CHECKING:
    from rdm_solo.notebook.figures import SweepFigures

ACCURACIES = [LINEAR.name, *(column.name for column in charts()[ACCURACY])]


@dataclass(frozen=True)
class Best:
    """The setting with the best mean of a column: over ``n`` runs, with their standard deviation.

    ``next`` is the setting behind it: where its mean lies within the spread, the runs do not tell
    which of both is better.
    """

    setting: str
    column: str
    mean: float
    sd: float  # NaN of one run
    n: int
    runs: tuple[Run, ...]
    next: "Best | None" = None

    def __repr__(self) -> str:
        text = f"{self.setting}: {self._numbers()}"
        if self.next:
            text += f"; next {self.next.setting}: {self.next._numbers()}"
        return f"<best {self.column}: {text}>"

    def _numbers(self) -> str:
        sd = f" ± {self.sd:.4g}" if self.n > 1 else ""
        return f"{self.mean:.4g}{sd} (n = {self.n})"


class Sweep:
    """The runs in a sweep's folder, at any depth, or in several folders, as far as they went.

    Runs that differ in their seeds alone are one setting. Means, standard deviations and n are over
    the runs with the most epochs of each setting, without those that diverged, as in the report.
    Reading executes nothing from the folders and writes nothing. A run that cannot be read is left
    out and named in ``problems``.

    >>> sweep = Sweep("sweeps/2026-01-31_12-00-00")  # doctest: +SKIP
    >>> sweep.best("val/knn_acc1")  # doctest: +SKIP
    <best val/knn_acc1: SimSiam, h(σ) = σ^-0.5: 93.1 ± 0.4 (n = 3); next ...>
    >>> sweep.plot.sweep()  # doctest: +SKIP
    """

    folders: tuple[Path, ...]
    _read: list[RunFolder]
    _broken: dict[Path, str]

    def __init__(self, *folders: str | os.PathLike[str]) -> None:
        if not folders:
            raise UserError("give the folder of a sweep, or several folders of runs.")
        self.folders = tuple(Path(folder).expanduser() for folder in folders)
        self.reload()

    def reload(self) -> "Sweep":
        """Read the folders again, with the runs and epochs that have ended meanwhile."""
        first = self.folders[0]
        if len(self.folders) == 1 and is_run(first):
            raise UserError(
                f"{first} is the folder of one run: read it as rdm_solo.Run({str(first)!r})."
            )
        self._read, self._broken = survey(self.folders)
        return self

    @property
    def runs(self) -> list[Run]:
        """The runs, those that have not ended an epoch too."""
        return [Run.of(read) for read in self._read]

    @property
    def problems(self) -> list[str]:
        """A sentence for each run that cannot be read, is incomplete, or is there twice."""
        from rdm_solo.report.entry import incomplete

        return [*self._broken.values(), *incomplete(self._read)]

    @property
    def settings(self) -> Any:
        """A table with one row a setting.

        Each column that compares runs stands there under its name with the mean of the last values
        over seeds, and as ``NAME sd`` and ``NAME n`` with their standard deviation and number.
        """
        found = self._compared()
        shown = [c.name for c in compared() if any(_last(counted_runs(g), c.name) for g in found)]
        return of_rows(
            {
                **_about(group),
                "runs": len(group.runs),
                "epochs": counted_runs(group)[0].epochs,
                **_moments(group, shown),
            }
            for group in found
        )

    @property
    def table(self) -> Any:
        """A table with one row a run: its setting, its last values, and the verdicts on it."""
        from rdm_solo.report.verdicts import verdicts

        names = [column.name for column in compared()]
        rows = []
        for group in self._compared():
            for run in group.runs:
                row = {**_about(group), "seed": run.seed, "epochs": run.epochs}
                row |= {name: _mean(_last([run], name)) for name in names}
                row |= {verdict.question: verdict.answer for verdict in verdicts([run])}
                rows.append({**row, "diverged": run.diverged, "folder": str(run.folder)})
        return of_rows(rows)

    @property
    def verdicts(self) -> Any:
        """A table of the report's verdicts on each setting, which count diverged runs, too."""
        from rdm_solo.report.verdicts import verdicts

        return of_rows(
            {"setting": group.label, **vars(verdict)}
            for group in begun_groups(self._read)
            for verdict in verdicts(judged_runs(group))
        )

    def over_seeds(self, column: str) -> Any:
        """A table of a column's last values: mean, sd, smallest, largest and n of each setting."""
        self._check(column)
        return of_rows(
            {
                **_about(group),
                "mean": _mean(values),
                "sd": _sd(values),
                "smallest": min(values, default=math.nan),
                "largest": max(values, default=math.nan),
                "n": len(values),
            }
            for group in self._compared()
            for values in [_last(counted_runs(group), column)]
        )

    def best(self, column: str, smallest: bool = False, dataset: str | None = None) -> Best:
        """The setting with the largest mean of a column's last values, or with the smallest.

        As in the report, settings of which all runs collapsed or diverged are left out. ValueError
        where no other setting has the column. ``dataset`` chooses the settings of one data set;
        accuracies on several are not compared, which is a ValueError, too.

        >>> Sweep("sweeps/lr").best("train/loss", smallest=True)  # doctest: +SKIP
        """
        from rdm_solo.report.ranking import excluded_reason

        self._check(column)
        self._check_dataset(dataset)
        found: list[Best] = []
        whole = {run.folder: run for run in self._read}  # with all their linear evaluations
        for group in self._compared():
            if excluded_reason(group) or dataset not in (None, group.first.dataset):
                continue
            counted = [run for run in counted_runs(group) if run.diverged is None]
            if values := _last(counted, column):
                members = tuple(Run.of(whole[run.folder]) for run in counted)
                moments = _mean(values), _sd(values), len(values)
                found.append(Best(group.label, column, *moments, members))
        if not found:
            on = f" on {dataset}" if dataset else ""
            raise UserError(
                f"no setting{on} has a value of {column}, or those that have one collapsed or "
                "diverged: see problems and verdicts."
            )
        names = list(dict.fromkeys(setting.runs[0].dataset for setting in found))
        if len(names) > 1 and column in ACCURACIES:
            raise UserError(
                f"{column} cannot be compared between data sets ({listed(names)}): choose one, "
                f"such as dataset={names[0]!r}."
            )
        found.sort(key=lambda setting: setting.mean if smallest else -setting.mean)
        best, *others = found
        return Best(**{**vars(best), "next": others[0] if others else None})

    @property
    def plot(self) -> "SweepFigures":
        """The figures of these runs: ``sweep.plot.sweep()``; ``dir(sweep.plot)`` lists them."""
        from rdm_solo.notebook.figures import SweepFigures  # with matplotlib

        return SweepFigures(self._read)

    def _compared(self) -> list[Group]:
        """The settings, with linear evaluations of one kind and protocol on each data set."""
        from rdm_solo.report.evaluations import comparable

        return comparable(begun_groups(self._read))

    def _check(self, column: str) -> None:
        check_column(column, [LINEAR.name, *(name for run in self._read for name in run.metrics)])

    def _check_dataset(self, name: str | None) -> None:
        known = list(dict.fromkeys(run.dataset for run in self._read))
        if name is not None and name not in known:
            hint = suggest(name, known) or f"; there are {', '.join(known)}."
            raise UserError(f"there is no run on {name!r}{hint}")

    def __repr__(self) -> str:
        settings = len(begun_groups(self._read))
        parts = [f"{len(self._read)} runs of {settings} setting{'s' * (settings != 1)}"]
        if self._broken:
            parts.append(f"{len(self._broken)} that cannot be read")
        return f"<Sweep {', '.join(parts)}; in {', '.join(map(str, self.folders))}>"


def _about(group: Group) -> dict[str, Any]:
    """What a row begins with."""
    run = group.first
    p = math.nan if run.p is None else run.p
    names = {"method": run.method, "filter": run.filter, "p": p, "dataset": run.dataset}
    return {"setting": group.label, **names}


def _moments(group: Group, names: Sequence[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in names:
        values = _last(counted_runs(group), name)
        found |= {name: _mean(values), f"{name} sd": _sd(values), f"{name} n": len(values)}
    return found


def _last(members: Sequence[RunFolder], column: str) -> list[float]:
    from rdm_solo.report import measured

    return measured.last(members, column)


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else math.nan


def _sd(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else math.nan
