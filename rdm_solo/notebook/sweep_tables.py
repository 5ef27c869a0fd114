"""A sweep in Python: tables of its settings and runs, the best setting, and figures."""

import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rdm_solo.ground.errors import UserError, join_first
from rdm_solo.ground.values import check_choice
from rdm_solo.notebook.plotting import Figures
from rdm_solo.notebook.run_tables import Run, table
from rdm_solo.report.entry import incomplete
from rdm_solo.report.judged import judge, last
from rdm_solo.report.verdicts import judge_run, verdicts
from rdm_solo.runs import scan
from rdm_solo.runs.columns import ACCURACY, LINEAR, charts, check_column, compared
from rdm_solo.runs.groups import Group, started_groups


@dataclass(frozen=True)
class Best:
    """The setting with the best mean of a column over ``n`` runs; ``next`` is the second-best."""

    setting: str
    column: str
    mean: float
    sd: float  # NaN for one run
    n: int
    runs: tuple[Run, ...]
    next: "Best | None" = None

    def __repr__(self) -> str:
        mean = f"{self.mean:.4g}"
        if self.n > 1:
            mean += f" ± {self.sd:.4g}"
        text = f"{self.column} of {self.setting}: {mean} (n = {self.n})"
        if self.next is not None:
            text += f"; next {self.next!r}"
        return f"<{text}>"


class Sweep:
    """The runs in a sweep's folder, at any depth, or in several folders.

    Runs that differ only in their seeds are one setting. As in the report, means, standard
    deviations and n are over each setting's runs with the most epochs, without those that diverged.
    Reading executes nothing from the folders and writes nothing. A run that cannot be read is left
    out and named in ``problems``. Tables are pandas data frames.

    >>> sweep = Sweep("sweeps/2026-01-31_12-00-00")  # doctest: +SKIP
    >>> sweep.best("val/knn_acc1")  # doctest: +SKIP
    <val/knn_acc1 of SimSiam, target filter σ^-0.5: 93.1 ± 0.4 (n = 3); next ...>
    >>> sweep.plot.sweep()  # doctest: +SKIP
    """

    def __init__(self, folder: str | os.PathLike[str], *more: str | os.PathLike[str]) -> None:
        self.folders = [Path(path).expanduser() for path in (folder, *more)]
        self.reload()

    def reload(self) -> "Sweep":
        """Read the folders again to include new runs and newly finished epochs."""
        self._runs, self._unreadable = scan(self.folders)
        return self

    @property
    def runs(self) -> list[Run]:
        """All runs, including those without a finished epoch."""
        return [Run.from_read(run) for run in self._runs]

    @property
    def problems(self) -> list[str]:
        """A sentence for each run that cannot be read, is incomplete, or appears twice."""
        return [*self._unreadable.values(), *incomplete(self._runs)]

    @property
    def settings(self) -> Any:
        """A table with a row per setting.

        For each compared column NAME, ``NAME``, ``NAME sd`` and ``NAME n`` are the mean, standard
        deviation and number of its last values over the seeds.
        """
        settings = judge(started_groups(self._runs))
        rows = []
        for setting in settings:
            runs = setting.counted
            row = {**_setting(setting.group), "runs": len(setting.runs), "epochs": runs[0].epochs}
            for column in compared():
                name = column.name
                if any(other.last[name] for other in settings):
                    mean, sd, n = _moments(setting.last[name])
                    row |= {name: mean, f"{name} sd": sd, f"{name} n": n}
            rows.append(row)
        return table(rows)

    @property
    def table(self) -> Any:
        """A table with a row per run: its setting, last values, and verdicts."""
        rows = []
        for setting in judge(started_groups(self._runs)):
            for judged in setting.runs:
                run = judged.run
                row = {**_setting(setting.group), "seed": run.seed, "epochs": run.epochs}
                for column in compared():
                    values = last([run], column.name, setting.evaluation)
                    row[column.name], _, _ = _moments(values)
                for verdict in verdicts([judged]):
                    row[verdict.question] = verdict.answer
                row["diverged"] = run.diverged
                row["folder"] = str(run.folder)
                rows.append(row)
        return table(rows)

    @property
    def verdicts(self) -> Any:
        """A table of the report's verdicts on each setting, including its diverged runs."""
        return table(
            {"setting": group.label, **vars(verdict)}
            for group in started_groups(self._runs)
            for verdict in verdicts([judge_run(run) for run in group.judged])
        )

    def best(self, column: str, smallest: bool = False, dataset: str | None = None) -> Best:
        """Return the setting with the largest (or smallest) mean of a column's last values.

        As in the report, a setting is left out if none of its runs is healthy. ``dataset``
        selects one data set; accuracies on different data sets are not compared.

        >>> Sweep("sweeps/lr").best("train/loss", smallest=True)  # doctest: +SKIP
        """
        names = [name for run in self._runs for name in run.metrics]
        check_column(column, [LINEAR.name, *names])
        if dataset is not None:
            check_choice("dataset", dataset, sorted({run.dataset for run in self._runs}))
        ranked: list[Best] = []
        runs = {run.folder: run for run in self.runs}  # with all their linear evaluations
        for setting in judge(started_groups(self._runs)):
            if dataset not in (None, setting.group.first.dataset):
                continue
            values = last(setting.counted, column, setting.evaluation)
            if values and setting.ranked:
                setting_runs = tuple(runs[run.folder] for run in setting.counted)
                ranked.append(Best(setting.label, column, *_moments(values), setting_runs))
        if not ranked:
            raise UserError(
                f"no setting with a healthy run has a value of {column}: see problems and verdicts."
            )
        datasets = sorted({best.runs[0].dataset for best in ranked})
        accuracies = [LINEAR, *charts()[ACCURACY]]
        if len(datasets) > 1 and column in [accuracy.name for accuracy in accuracies]:
            raise UserError(
                f"{column} cannot be compared between data sets ({join_first(datasets)}): choose "
                f"one, such as dataset={datasets[0]!r}."
            )
        ranked.sort(key=lambda best: best.mean, reverse=not smallest)
        if len(ranked) == 1:
            return ranked[0]
        return replace(ranked[0], next=ranked[1])

    @property
    def plot(self) -> Figures:
        """The figures, such as ``sweep.plot.sweep()``; ``dir(sweep.plot)`` lists them."""
        return Figures(self._runs)

    def __repr__(self) -> str:
        settings = len(started_groups(self._runs))
        folders = ", ".join(map(str, self.folders))
        return f"<Sweep: {len(self._runs)} runs, {settings} settings; in {folders}>"


def _setting(group: Group) -> dict[str, Any]:
    """Return the first columns of a row."""
    run = group.first
    return {
        "setting": group.label,
        "method": run.method,
        "filter": run.filter,
        "p": run.p,
        "dataset": run.dataset,
    }


def _moments(values: Sequence[float]) -> tuple[float, float, int]:
    """Return mean, standard deviation and n; NaN where there are too few values."""
    mean = statistics.fmean(values) if values else math.nan
    sd = statistics.stdev(values) if len(values) > 1 else math.nan
    return mean, sd, len(values)
