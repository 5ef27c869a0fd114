"""The runs of a sweep in Python: a row per setting, a row per run, the best setting, figures."""

import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rdm_solo.messages import UserError, check_choice, listed
from rdm_solo.notebook.figures import SweepFigures
from rdm_solo.notebook.run import Run, table
from rdm_solo.report.entry import incomplete
from rdm_solo.report.evaluations import comparable
from rdm_solo.report.measured import last
from rdm_solo.report.ranking import excluded_reason
from rdm_solo.report.verdicts import verdicts
from rdm_solo.runs import survey
from rdm_solo.runs.columns import ACCURACY, LINEAR, charts, check_column, compared
from rdm_solo.runs.folder import is_run
from rdm_solo.runs.groups import Group, begun_groups, counted_runs, judged_runs


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
        text = f"{self.setting}: {self._numbers()}"
        if self.next:
            text += f"; next {self.next.setting}: {self.next._numbers()}"
        return f"<best {self.column}: {text}>"

    def _numbers(self) -> str:
        sd = f" ± {self.sd:.4g}" if self.n > 1 else ""
        return f"{self.mean:.4g}{sd} (n = {self.n})"


class Sweep:
    """The runs in a sweep's folder, at any depth, or in several folders.

    Runs that differ only in their seeds are one setting. As in the report, means, standard
    deviations and n are over each setting's runs with the most epochs, without those that diverged.
    Reading executes nothing from the folders and writes nothing. A run that cannot be read is left
    out and named in ``problems``. Tables are pandas'.

    >>> sweep = Sweep("sweeps/2026-01-31_12-00-00")  # doctest: +SKIP
    >>> sweep.best("val/knn_acc1")  # doctest: +SKIP
    <best val/knn_acc1: SimSiam, h(σ) = σ^-0.5: 93.1 ± 0.4 (n = 3); next ...>
    >>> sweep.plot.sweep()  # doctest: +SKIP
    """

    def __init__(self, *folders: str | os.PathLike[str]) -> None:
        if not folders:
            raise UserError("give the folder of a sweep, or several folders of runs.")
        self.folders = tuple(Path(folder).expanduser() for folder in folders)
        self.reload()

    def reload(self) -> "Sweep":
        """Read the folders again, with the runs and epochs that finished meanwhile."""
        first = self.folders[0]
        if len(self.folders) == 1 and is_run(first):
            raise UserError(
                f"{first} is the folder of one run: read it as rdm_solo.Run({str(first)!r})."
            )
        self._read, self._broken = survey(self.folders)
        return self

    @property
    def runs(self) -> list[Run]:
        """All runs, also those that have not finished an epoch."""
        return [Run.of(run) for run in self._read]

    @property
    def problems(self) -> list[str]:
        """A sentence for each run that cannot be read, is incomplete, or appears twice."""
        return [*self._broken.values(), *incomplete(self._read)]

    @property
    def settings(self) -> Any:
        """A table with a row per setting.

        Each column that compares runs has the mean of the last values over seeds under its name,
        and their standard deviation and number under ``NAME sd`` and ``NAME n``.
        """
        groups = self._comparable()
        rows: list[dict[str, Any]] = []
        for group in groups:
            epochs = counted_runs(group)[0].epochs
            rows.append({**_setting(group), "runs": len(group.runs), "epochs": epochs})
        for name in (column.name for column in compared()):
            moments = [_moments(last(counted_runs(group), name)) for group in groups]
            if any(n for _, _, n in moments):
                for row, (mean, sd, n) in zip(rows, moments):
                    row |= {name: mean, f"{name} sd": sd, f"{name} n": n}
        return table(rows)

    @property
    def table(self) -> Any:
        """A table with a row per run: its setting, last values, and verdicts."""
        rows = []
        for group in self._comparable():
            for run in group.runs:
                row = {**_setting(group), "seed": run.seed, "epochs": run.epochs}
                row |= {c.name: _moments(last([run], c.name))[0] for c in compared()}
                row |= {verdict.question: verdict.answer for verdict in verdicts([run])}
                rows.append({**row, "diverged": run.diverged, "folder": str(run.folder)})
        return table(rows)

    @property
    def verdicts(self) -> Any:
        """A table of the report's verdicts on each setting; they count diverged runs as well."""
        return table(
            {"setting": group.label, **vars(verdict)}
            for group in begun_groups(self._read)
            for verdict in verdicts(judged_runs(group))
        )

    def over_seeds(self, column: str) -> Any:
        """Return a table of a column's last values: mean, sd, smallest, largest, n per setting."""
        self._check(column)
        rows = []
        for group in self._comparable():
            values = last(counted_runs(group), column)
            mean, sd, n = _moments(values)
            smallest, largest = min(values, default=math.nan), max(values, default=math.nan)
            numbers = {"mean": mean, "sd": sd, "smallest": smallest, "largest": largest, "n": n}
            rows.append({**_setting(group), **numbers})
        return table(rows)

    def best(self, column: str, smallest: bool = False, dataset: str | None = None) -> Best:
        """Return the setting with the largest (or smallest) mean of a column's last values.

        As in the report, a setting is left out if all its runs collapsed or diverged. ``dataset``
        selects the settings of one data set; accuracies on several are not compared.

        >>> Sweep("sweeps/lr").best("train/loss", smallest=True)  # doctest: +SKIP
        """
        self._check(column)
        if dataset is not None:
            check_choice("dataset", dataset, sorted({run.dataset for run in self._read}))
        ranked: list[Best] = []
        whole = {run.folder: run for run in self._read}  # with all their linear evaluations
        for group in self._comparable():
            members = [run for run in counted_runs(group) if run.diverged is None]
            values = last(members, column) if members else []
            if values and not excluded_reason(group) and dataset in (None, group.first.dataset):
                runs = tuple(Run.of(whole[run.folder]) for run in members)
                ranked.append(Best(group.label, column, *_moments(values), runs))
        if not ranked:
            raise UserError(
                f"no setting{f' on {dataset}' if dataset else ''} that did not collapse or diverge "
                f"has a value of {column}: see problems and verdicts."
            )
        names = sorted({best.runs[0].dataset for best in ranked})
        if len(names) > 1 and column in (LINEAR.name, *(c.name for c in charts()[ACCURACY])):
            raise UserError(
                f"{column} cannot be compared between data sets ({listed(names)}): choose one, "
                f"such as dataset={names[0]!r}."
            )
        first, *others = sorted(ranked, key=lambda best: best.mean, reverse=not smallest)
        return replace(first, next=others[0] if others else None)

    @property
    def plot(self) -> SweepFigures:
        """The figures of these runs: ``sweep.plot.sweep()``; ``dir(sweep.plot)`` lists them."""
        return SweepFigures(self._read)

    def _comparable(self) -> list[Group]:
        """Return the settings, with linear evaluations of one kind and protocol per data set."""
        return comparable(begun_groups(self._read))

    def _check(self, column: str) -> None:
        check_column(column, [LINEAR.name, *(name for run in self._read for name in run.metrics)])

    def __repr__(self) -> str:
        settings = len(begun_groups(self._read))
        parts = [f"{len(self._read)} runs of {settings} setting{'s' * (settings != 1)}"]
        if self._broken:
            parts.append(f"{len(self._broken)} that cannot be read")
        return f"<Sweep {', '.join(parts)}; in {', '.join(map(str, self.folders))}>"


def _setting(group: Group) -> dict[str, Any]:
    """Return the first columns of a row."""
    run = group.first
    names = {"method": run.method, "filter": run.filter, "p": run.p, "dataset": run.dataset}
    return {"setting": group.label, **names}


def _moments(values: Sequence[float]) -> tuple[float, float, int]:
    """Return mean, standard deviation and n."""
    mean = statistics.fmean(values) if values else math.nan
    return mean, statistics.stdev(values) if len(values) > 1 else math.nan, len(values)
