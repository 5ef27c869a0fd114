"""A run's folder in Python: its tables, spectra, verdicts and figures."""

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from rdm_solo import runs
from rdm_solo.ground.packages import check_installed
from rdm_solo.notebook.plotting import RunFigures
from rdm_solo.report import judged
from rdm_solo.report.verdicts import judge_run, verdicts
from rdm_solo.runs.columns import LINEAR, check_column


def table(rows: Iterable[Mapping[str, Any]] | Mapping[str, Any]) -> Any:
    """Return rows, or columns by name, as a ``pandas.DataFrame``."""
    check_installed("a table", "pandas")
    import pandas  # type: ignore[import-untyped, import-not-found, unused-ignore]

    return pandas.DataFrame(rows)


class Run:
    """A run's folder at the time it was read; :meth:`reload` reads it again.

    Reading executes nothing from the folder and does not change it. Tables are pandas data frames.

    >>> run = Run("runs/2026-01-31_12-00-00_simsiam_target_pow")  # doctest: +SKIP
    >>> run.metrics["erank/target"]  # doctest: +SKIP
    >>> run.plot.effective_rank()  # doctest: +SKIP

    Attributes:
        folder, seed: the run's folder and seed.
        label: method and filter as in the paper.
        method, filter, dataset: their names in the config.
        p: the exponent; None if there is none or if it follows a schedule (in ``config``).
        epochs: the number of finished epochs.
        diverged: the epoch in which training diverged, or None; tables end before it.
        missing: sentences on what the folder lacks or what went wrong.
        config: the config as a dict.
        untrained: values from before the first step, by column.
        summary: ``summary.json``, written when a run ends, or by ``Watch`` after each epoch.
        spectra: arrays whose first axis is ``spectra["epoch"]``, the measured epochs: descending
            eigenvalues such as ``lam_online``, ``(epochs, k)``, and ``filter_curve``.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).expanduser()
        self.reload()

    @classmethod
    def from_read(cls, run: runs.RunFolder) -> "Run":
        """Create a run from one that :mod:`rdm_solo.runs` has read."""
        new = cls.__new__(cls)
        new._set(run)
        return new

    def reload(self) -> "Run":
        """Read the folder again to include newly finished epochs, and return this run."""
        self._set(runs.load(self.folder))
        return self

    def _set(self, run: runs.RunFolder) -> None:
        self._run = run
        self.folder = run.folder
        self.label = run.label
        self.method = run.method
        self.filter = run.filter
        self.p = run.p
        self.dataset = run.dataset
        self.seed = run.seed
        self.epochs = run.epochs
        self.diverged = run.diverged
        self.missing = run.missing
        self.config: Any = OmegaConf.to_container(run.config, resolve=False)
        self.summary = dict(run.summary)
        self.untrained = dict(run.untrained)
        self.spectra = dict(run.spectra)

    def spectrum(self, epoch: int | None = None) -> dict[str, np.ndarray]:
        """Return the arrays of one measured epoch, by default the last."""
        return self._run.spectrum(epoch)

    @property
    def metrics(self) -> Any:
        """``metrics.csv`` as a table, one row per epoch; NaN means not measured or not finite."""
        return table(self._run.metrics)

    @property
    def warnings(self) -> Any:
        """A table of the warnings and notes in ``summary``: kind, epoch, text, advice."""
        return table(self.summary.get("warnings", []))

    @property
    def verdicts(self) -> Any:
        """A table of the report's verdicts; ``good`` is None if a verdict is not scored."""
        return table(map(vars, verdicts([judge_run(self._run)])))

    @property
    def linear(self) -> Any:
        """A table of the linear evaluations by ``rdm-solo linear``, one row each."""
        rows = []
        for kind, records in self._run.linear.items():
            for record in records:
                rows.append({"kind": kind, **record})
        return table(rows)

    def last(self, column: str) -> float:
        """Return a column's last measured value; NaN if there is none or it is not finite.

        ``linear/top1`` is the mean over the seeds of the linear evaluation.
        """
        check_column(column, [LINEAR.name, *self._run.metrics])
        values = judged.last([self._run], column)
        return next(iter(values), math.nan)

    @property
    def plot(self) -> RunFigures:
        """The figures, such as ``run.plot.effective_rank()``; ``dir(run.plot)`` lists them."""
        return RunFigures([self._run])

    def __repr__(self) -> str:
        text = f"{self.label}, {self.dataset}, seed {self.seed}: {self._run.progress}"
        warnings = self.summary.get("warnings")
        if warnings:
            text += f"; warnings: {len(warnings)}"
        return f"<Run {text}; in {self.folder}>"
