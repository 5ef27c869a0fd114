"""A sweep in Python: tables of its settings and runs, the best setting, and figures."""

import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rdm_solo.ground.errors import UserError, join_first
from rdm_solo.ground.values import check_choice
from rdm_solo.notebook.plotting import Figures
from rdm_solo.notebook.run_tables import Run, table
from rdm_solo.report.entry import incomplete
from rdm_solo.report.judged import ACCURACIES, judge, last
from rdm_solo.report.verdicts import judge_run, verdicts
from rdm_solo.runs import scan
from rdm_solo.runs.columns import COLUMNS, LINEAR, check_column, compared
from rdm_solo.runs.groups import Group, started_groups


@dataclass(frozen=True)
class Best:
    """The setting with the best mean of a column over ``n`` runs; ``next`` is the second-best."""

    setting: str
    column: str
    mean: float
    sd: float  # NaN for one run
    n: int
    runs: tuple[Run, ...] = field(repr=False)
    next: "Best | None" = None


class Sweep:
    """The runs in a sweep's folder, at any depth, or in several folders.

    Runs that differ only in their seeds are one setting. Runs with equal options and the same seed
    are listed separately, each with its folder. As in the report, means, standard deviations and n
    are over each setting's runs with the most epochs, without those that diverged.
    Reading executes nothing from the folders and writes nothing. A run that cannot be read is left
    out and named in ``problems``. Tables are pandas data frames.

    >>> sweep = Sweep("sweeps/2026-01-31_12-00-00")  # doctest: +SKIP
    >>> sweep.best("val/knn_acc1")  # doctest: +SKIP
    Best(setting='SimSiam, target filter σ^-0.5', column='val/knn_acc1', mean=93.1, sd=0.4, n=3, ...
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
        """A sentence for each run that cannot be read or is incomplete."""
        return [*self._unreadable.values(), *incomplete(self._runs)]

    @property
    def settings(self) -> Any:
        """A table with a row per setting.

        For each compared column NAME, ``NAME``, ``NAME sd`` and ``NAME n`` are the mean, standard
        deviation and number of its last values over the seeds.
        """
        rows = []
        for setting in judge(started_groups(self._runs)):
            row = _setting(setting.group)
            row |= {"runs": len(setting.judged_runs), "epochs": setting.counted[0].epochs}
            for column in compared():
                name = column.name
                mean, sd, n = _moments(setting.last(name))
                row |= {name: mean, f"{name} sd": sd, f"{name} n": n}
            rows.append(row)
        return table(rows)

    @property
    def table(self) -> Any:
        """A table with a row per run: its setting, last values, and verdicts."""
        rows = []
        for setting in judge(started_groups(self._runs)):
            for judged in setting.judged_runs:
                run = judged.run
                row = _setting(setting.group)
                row |= {"seed": run.seed, "epochs": run.epochs}
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
        rows = []
        for group in started_groups(self._runs):
            judged = [judge_run(run) for run in group.judged]
            for verdict in verdicts(judged):
                rows.append({"setting": group.label, **vars(verdict)})
        return table(rows)

    def best(self, column: str, smallest: bool | None = None, dataset: str | None = None) -> Best:
        """Return the setting with the best mean of a column's last values.

        The best is the largest, and for losses the smallest, unless ``smallest`` is passed. As in
        the report, a setting is left out if none of its runs is healthy. ``dataset`` selects one
        data set; accuracies on different data sets are not compared.

        >>> Sweep("sweeps/lr").best("train/loss")  # doctest: +SKIP
        """
        if smallest is None:
            smallest = column in COLUMNS and COLUMNS[column].better == "lower"
        names = {LINEAR.name}
        for run in self._runs:
            names.update(run.metrics)
        check_column(column, names)
        groups = started_groups(self._runs)
        datasets = sorted({group.first.dataset for group in groups})
        if dataset is not None:
            check_choice("dataset", dataset, datasets)
        elif column in [accuracy.name for accuracy in ACCURACIES] and len(datasets) > 1:
            raise UserError(
                f"{column} cannot be compared between data sets: pass dataset= with one of "
                f"{join_first(datasets)}."
            )
        ranked = []
        for setting in judge(groups):
            values = setting.last(column)
            is_chosen = dataset in (None, setting.group.first.dataset)
            if is_chosen and setting.ranked and values:
                runs = map(Run.from_read, setting.counted)
                ranked.append(Best(setting.label, column, *_moments(values), tuple(runs)))
        if not ranked:
            raise UserError(
                f"no setting with a healthy run has a value of {column}: see problems and verdicts."
            )
        ranked.sort(key=lambda best: best.mean, reverse=not smallest)
        best, *others = ranked
        if others:
            best = replace(best, next=others[0])
        return best

    @property
    def plot(self) -> Figures:
        """The figures, such as ``sweep.plot.sweep()``; ``dir(sweep.plot)`` lists them."""
        return Figures(self._runs)

    def __repr__(self) -> str:
        groups = started_groups(self._runs)
        return f"<Sweep: {len(self._runs)} runs, {len(groups)} settings>"


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
