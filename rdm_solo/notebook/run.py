"""A run's folder in Python: its tables, spectra, verdicts and figures."""

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from omegaconf import OmegaConf

from rdm_solo import runs
from rdm_solo.messages import UserError
from rdm_solo.notebook.tables import of_rows, table
from rdm_solo.plots.settings import accuracy
from rdm_solo.runs.columns import COLUMNS, LINEAR, check_column
from rdm_solo.runs.folder import is_run
from rdm_solo.runs.groups import Group, so_far

if TYPE_CHECKING:
    from rdm_solo.notebook.figures import RunFigures

Same = TypeVar("Same", bound="Run")


class Run:
    """The run in a folder, as far as it went when it was read; :meth:`reload` reads it again.

    Reading executes nothing from the folder and writes nothing into it, so it may come from a
    stranger, and a run that goes on may be read at any time. ValueError, in a sentence, for a
    folder that holds no run.

    >>> run = Run("runs/2026-01-31_12-00-00_simsiam_target_pow")  # doctest: +SKIP
    >>> run.metrics["erank/target"]  # doctest: +SKIP
    >>> run.plot.effective_rank()  # doctest: +SKIP
    """

    folder: Path
    _read: runs.Run

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).expanduser()
        self.reload()

    @classmethod
    def of(cls: type[Same], read: runs.Run) -> Same:
        """The same of a run that was read."""
        made = cls.__new__(cls)
        made.folder, made._read = read.folder, read
        return made

    def reload(self: Same) -> Same:
        """Read the folder again, with the epochs that have ended meanwhile; the run itself."""
        if self.folder.is_dir() and not is_run(self.folder):
            below, broken = runs.survey([self.folder])  # says so itself where there is none
            raise UserError(
                f"{self.folder} is no run: it holds {len(below) + len(broken)} of them; read it as "
                f"rdm_solo.Sweep({str(self.folder)!r})."
            )
        (self._read,) = runs.find([self.folder])
        return self

    @property
    def label(self) -> str:
        """Method and filter in the paper's words."""
        return self._read.label

    @property
    def method(self) -> str:
        """The method's name, as ``method=`` has it."""
        return self._read.method

    @property
    def filter(self) -> str:
        """The filter's name, as ``filter=`` has it."""
        return self._read.filter

    @property
    def p(self) -> float | None:
        """The exponent; None where there is none, or a schedule (which ``config`` has)."""
        return self._read.p

    @property
    def dataset(self) -> str:
        """The data set's name."""
        return self._read.dataset

    @property
    def seed(self) -> int:
        """The seed."""
        return self._read.seed

    @property
    def epochs(self) -> int:
        """Epochs that have ended; ``config["max_epochs"]`` were asked for."""
        return self._read.epochs

    @property
    def diverged(self) -> int | None:
        """The epoch in which training diverged, if it did; tables end before it."""
        return self._read.diverged

    @property
    def config(self) -> dict[str, Any]:
        """The run's config as a dict of its own."""
        found: Any = OmegaConf.to_container(self._read.config, resolve=False)
        return dict(found)

    @property
    def summary(self) -> dict[str, Any]:
        """``summary.json``: last values, seconds, device, versions. Empty until it is written:
        after each epoch by a watch, else at the end."""
        return dict(self._read.summary)

    @property
    def metrics(self) -> Any:
        """``metrics.csv``, a table with one row an epoch; NaN is what an epoch did not measure."""
        return table(self._read.metrics)

    @property
    def spectra(self) -> dict[str, np.ndarray]:
        """Arrays whose first axis are the measured epochs, which ``spectra["epoch"]`` names.

        ``lam_online``, ``lam_target``, ``lam_positive`` and ``lam_projection`` are eigenvalues in
        descending order, ``(epochs, k)``; ``filter_curve`` is the filter between the branches.
        """
        return dict(self._read.spectra)

    def spectrum(self, epoch: int | None = None) -> dict[str, np.ndarray]:
        """The arrays of one measured epoch, by default the last."""
        return self._read.spectrum(epoch)

    @property
    def warnings(self) -> Any:
        """A table of what the collapse watch said: kind, epoch, text; empty as long as
        ``summary`` is."""
        return of_rows(self._read.summary.get("warnings", []))

    @property
    def verdicts(self) -> Any:
        """A table of the report's three verdicts: does the target lead, is the filter low-pass, is
        there a collapse. ``good`` is None where an answer is not scored."""
        from rdm_solo.report import verdicts

        return of_rows(vars(verdict) for verdict in verdicts.verdicts([self._read]))

    @property
    def linear(self) -> Any:
        """A table of the linear evaluations by ``python -m rdm_solo.linear``, one a row."""
        return of_rows(
            {"kind": kind, **entry}
            for kind, entries in self._read.linear.items()
            if isinstance(entries, list)
            for entry in entries
        )

    @property
    def missing(self) -> tuple[str, ...]:
        """What the folder lacks, or what went wrong, in words."""
        return self._read.missing

    def last(self, column: str) -> float:
        """A column's last measured value; NaN where there is none or it is not finite.

        ``linear/top1`` is the mean over the seeds of the linear evaluation, by the paper's protocol
        where there is one.
        """
        from rdm_solo.report import measured

        check_column(column, [LINEAR.name, *self._read.metrics])
        values = measured.last([self._read], column)
        return values[0] if values else math.nan

    @property
    def plot(self) -> "RunFigures":
        """The figures of this run: ``run.plot.effective_rank()``; ``dir(run.plot)`` lists them."""
        from rdm_solo.notebook.figures import RunFigures  # with matplotlib

        return RunFigures(self._read)

    def __repr__(self) -> str:
        read = self._read
        parts = [f"{read.label}, {read.dataset}, seed {read.seed}: {so_far(read)}"]
        online, target = (read.last(f"erank/{branch}") for branch in ("online", "target"))
        if math.isfinite(online) and math.isfinite(target):
            parts.append(f"erank online {online:.1f}, target {target:.1f}")
        column = accuracy([Group(read.label, (read,))]) if read.epochs else ""
        if column and math.isfinite(read.last(column)):
            parts.append(f"{COLUMNS[column].words} {read.last(column):.1f} %")
        if warned := len(read.summary.get("warnings", [])):
            parts.append(f"{warned} warning{'s' * (warned > 1)}")
        return f"<Run {'; '.join(parts)}; in {self.folder}>"
