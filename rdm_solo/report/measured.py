"""Numbers of a setting's runs: first and last values, linear accuracies."""

from collections.abc import Sequence

import numpy as np

from rdm_solo.report import evaluations
from rdm_solo.runs.columns import LINEAR, Column
from rdm_solo.runs.folder import Run
from rdm_solo.runs.groups import latest, latest_in_words, spread


def last(runs: Sequence[Run], column: str) -> list[float]:
    """Return the runs' values in the last epoch that measured a column."""
    return linear_accuracies(runs) if column == LINEAR.name else latest(runs, column)[1]


def cells(runs: Sequence[Run], columns: Sequence[Column]) -> list[str]:
    """Return the last values of these columns as text."""
    return [
        spread(linear_accuracies(runs), column.digits)
        if column == LINEAR
        else latest_in_words(runs, column.name, column.digits)
        for column in columns
    ]


def change(runs: Sequence[Run], column: str) -> str:
    """Return the first and the last measured values as text, or a dash."""
    measured = finite(runs, column)
    first = spread([float(values[0]) for values in measured], 1)
    return f"{first} → {latest_in_words(runs, column, 1)}" if measured else "–"


def finite(runs: Sequence[Run], column: str) -> list[np.ndarray]:
    """Return the finite values of a column for each run that has any."""
    columns = (run.metrics.get(column, np.empty(0)) for run in runs)
    measured = (values[np.isfinite(values)] for values in columns)
    return [values for values in measured if len(values)]


def linear_accuracies(runs: Sequence[Run], top: str = "top1") -> list[float]:
    """Return each evaluated run's linear accuracy, a mean over its classifier's seeds.

    All are of the kind and protocol that most runs have; other runs are left out.
    """
    chosen = evaluations.common(runs)
    records = [evaluations.of_run(run).get(chosen, []) for run in runs] if chosen else []
    return [float(np.mean([entry[top] for entry in entries])) for entries in records if entries]
