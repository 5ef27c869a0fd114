"""Numbers of a setting's runs: first and last values, linear accuracies."""

import json
import math
from collections.abc import Sequence

import numpy as np

from rdm_solo.runs import columns
from rdm_solo.runs.files import LINEAR
from rdm_solo.runs.folder import Run
from rdm_solo.runs.groups import spread


def last(runs: Sequence[Run], column: str) -> list[float]:
    """The last measured value of each run that has any; its linear accuracy has one alone."""
    if column == columns.LINEAR.name:
        return linear_accuracies(runs)
    return [value for value in (run.last(column) for run in runs) if math.isfinite(value)]


def cells(runs: Sequence[Run], shown: Sequence[columns.Column]) -> list[str]:
    """The last values of these columns."""
    return [spread(last(runs, column.name), column.digits) for column in shown]


def change(runs: Sequence[Run], column: str) -> str:
    """The first and the last measured values, or a dash."""
    found = finite(runs, column)
    ends = (spread([float(values[at]) for values in found], 1) for at in (0, -1))
    return " → ".join(ends) if found else "–"


def finite(runs: Sequence[Run], column: str) -> list[np.ndarray]:
    """The finite values of a column, of each run that has any."""
    columns = (run.metrics.get(column, np.empty(0)) for run in runs)
    measured = (values[np.isfinite(values)] for values in columns)
    return [values for values in measured if len(values)]


def linear(run: Run) -> tuple[str, dict[str, float]]:
    """The kind of features, and top1 and top5 of the run's linear evaluation over its seeds.

    The paper's protocol comes before cached features, the latest settings before older ones.
    """
    try:
        found = json.loads((run.folder / LINEAR).read_text())
        for kind in ("protocol", "cached"):
            entries = found.get(kind) or []
            entries = [entries] if isinstance(entries, dict) else entries
            if entries:
                protocol = entries[-1]["protocol"]
                alike = [entry for entry in entries if entry["protocol"] == protocol]
                return kind, {
                    top: float(np.mean([entry[top] for entry in alike])) for top in ("top1", "top5")
                }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # none, or not of ours
        pass
    return "", {}


def linear_accuracies(runs: Sequence[Run], top: str = "top1") -> list[float]:
    """The linear accuracy of each run that was evaluated."""
    return [found[top] for _, found in map(linear, runs) if top in found]
