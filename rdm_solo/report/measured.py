"""Numbers of a setting's runs: first and last values, and linear accuracies that are comparable."""

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from rdm_solo.runs.columns import LINEAR, Column
from rdm_solo.runs.folder import Run
from rdm_solo.runs.groups import Group, counted_runs, format_latest, latest, mean_std
from rdm_solo.runs.linear_file import KINDS, Record


def last(runs: Sequence[Run], column: str) -> list[float]:
    """Return the runs' values in the last epoch that measured a column."""
    return linear_accuracies(runs) if column == LINEAR.name else latest(runs, column)[1]


def cells(runs: Sequence[Run], columns: Sequence[Column]) -> list[str]:
    """Return the last values of these columns as text."""
    return [
        mean_std(linear_accuracies(runs), column.digits)
        if column == LINEAR
        else format_latest(runs, column.name, column.digits)
        for column in columns
    ]


class Evaluation(NamedTuple):
    """What accuracies must share to be averaged or ranked; the classifier's seed may differ."""

    kind: str
    protocol: str  # as JSON: equal protocols are equal text


def evaluations(run: Run) -> dict[Evaluation, list[Record]]:
    """Return a run's evaluations, one record for each seed of the classifier.

    Of each kind, the latest protocol comes first.
    """
    records: dict[Evaluation, list[Record]] = {}
    for kind in KINDS:
        for record in reversed(run.linear.get(kind, [])):
            numbers = json.loads(json.dumps(record.get("protocol")), parse_int=float)  # 30 is 30.0
            evaluation = Evaluation(kind, json.dumps(numbers, sort_keys=True))
            records.setdefault(evaluation, []).append(record)
    return records


def commonest(runs: Sequence[Run]) -> Evaluation | None:
    """Return the kind and protocol that most runs have; None if no run was evaluated.

    Ties go to the first of ``KINDS``, and within a kind to the latest protocol.
    """
    counts = Counter(evaluation for run in runs for evaluation in evaluations(run))
    return max(counts, key=lambda e: (counts[e], -KINDS.index(e.kind)), default=None)


def linear_accuracies(runs: Sequence[Run], top: str = "top1") -> list[float]:
    """Return each evaluated run's linear accuracy, a mean over its classifier's seeds.

    All are of the kind and protocol that most runs have; other runs are left out.
    """
    chosen = commonest(runs)
    records = [evaluations(run).get(chosen, []) for run in runs] if chosen else []
    return [float(np.mean([record[top] for record in of_run])) for of_run in records if of_run]


def comparable(groups: Sequence[Group]) -> list[Group]:
    """Return the settings with only the linear evaluations that are compared on their data set.

    Those are of the kind and protocol that most counted runs on it have.
    """
    counted: dict[str, list[Run]] = defaultdict(list)
    for group in groups:
        counted[group.first.dataset] += counted_runs(group)
    chosen = {dataset: commonest(runs) for dataset, runs in counted.items()}
    return [
        replace(group, runs=tuple(_only(run, chosen[run.dataset]) for run in group.runs))
        for group in groups
    ]


def _only(run: Run, evaluation: Evaluation | None) -> Run:
    if evaluation is None:
        return run
    records = evaluations(run).get(evaluation, [])
    return replace(run, linear={evaluation.kind: records} if records else {})
