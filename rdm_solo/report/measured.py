"""Numbers of a setting's runs: first and last values, linear accuracies."""

from collections.abc import Sequence

import numpy as np

from rdm_solo.report import evaluations
from rdm_solo.runs import columns
from rdm_solo.runs.folder import Run
from rdm_solo.runs.groups import latest, latest_in_words, spread
from rdm_solo.spectra.epoch_summary import Basis


def last(runs: Sequence[Run], column: str) -> list[float]:
    """The runs' values in the last epoch that measured the column; linear accuracies have none."""
    return linear_accuracies(runs) if column == columns.LINEAR.name else latest(runs, column)[1]


def cells(runs: Sequence[Run], shown: Sequence[columns.Column]) -> list[str]:
    """The last values of these columns."""
    return [
        spread(linear_accuracies(runs), column.digits)
        if column == columns.LINEAR
        else latest_in_words(runs, column.name, column.digits)
        for column in shown
    ]


def change(runs: Sequence[Run], column: str) -> str:
    """The first and the last measured values, or a dash."""
    found = finite(runs, column)
    first = spread([float(values[0]) for values in found], 1)
    return f"{first} → {latest_in_words(runs, column, 1)}" if found else "–"


def finite(runs: Sequence[Run], column: str) -> list[np.ndarray]:
    """The finite values of a column, of each run that has any."""
    columns = (run.metrics.get(column, np.empty(0)) for run in runs)
    measured = (values[np.isfinite(values)] for values in columns)
    return [values for values in measured if len(values)]


def linear_accuracies(runs: Sequence[Run], top: str = "top1") -> list[float]:
    """The linear accuracy of each run that was evaluated, over the seeds of its classifier.

    They are of one kind and protocol: runs without the one that most runs have are left out.
    """
    chosen = evaluations.common(runs)
    found = [evaluations.of_run(run).get(chosen, []) for run in runs] if chosen else []
    return [float(np.mean([entry[top] for entry in entries])) for entries in found if entries]


def few_rows(run: Run) -> str | None:
    """A warning where the last measured epoch had too few rows for its dimensions."""
    rows, sampled = _count(run, "rows"), bool(_count(run, "sampled"))
    lam = run.spectra.get("lam_target", np.empty(0))
    dimensions = lam.shape[-1] if lam.ndim == 2 else 0
    if sampled and not run.described.softmax:  # then there are as many eigenvalues as rows
        dimensions = max(dimensions, _count(run, "dimensions"))
    return Basis(rows, dimensions, True, sampled, 0).warning if rows and dimensions else None


def _count(run: Run, name: str) -> int:
    """What the last measured epoch says of a count; 0 where it says nothing."""
    known = np.ravel(run.spectra.get(name, np.empty(0)))[-1:]
    return int(np.nan_to_num(known, posinf=0).sum())
