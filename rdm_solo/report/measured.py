"""Return the last values of a setting's runs and their comparable linear accuracies."""

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
    """Return the runs' values in the last epoch in which a column was measured."""
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
    """Kind and protocol of a linear evaluation; only accuracies with equal ones are compared."""

    kind: str
    protocol: str  # as JSON: equal protocols are equal text


def evaluations(run: Run) -> dict[Evaluation, list[Record]]:
    """Return a run's evaluations, one record for each seed of the classifier.

    Within a kind, the latest protocol comes first.
    """
    records: dict[Evaluation, list[Record]] = {}
    for kind in KINDS:
        for record in reversed(run.linear.get(kind, [])):
            numbers = json.loads(json.dumps(record.get("protocol")), parse_int=float)  # 30 is 30.0
            evaluation = Evaluation(kind, json.dumps(numbers, sort_keys=True))
            records.setdefault(evaluation, []).append(record)
    return records


def most_common(runs: Sequence[Run]) -> Evaluation | None:
    """Return the kind and protocol that most runs have; None if no run was evaluated.

    Ties go to the first of ``KINDS``, and within a kind to the latest protocol.
    """
    counts = Counter(evaluation for run in runs for evaluation in evaluations(run))
    return max(counts, key=lambda e: (counts[e], -KINDS.index(e.kind)), default=None)


def linear_accuracies(runs: Sequence[Run], top: str = "top1") -> list[float]:
    """Return each evaluated run's linear accuracy, a mean over its classifier's seeds.

    Only evaluations of the most common kind and protocol count; other runs are left out.
    """
    chosen = most_common(runs)
    records = [evaluations(run).get(chosen, []) for run in runs] if chosen else []
    return [float(np.mean([record[top] for record in group])) for group in records if group]


def comparable(groups: Sequence[Group]) -> list[Group]:
    """Return the settings without the linear evaluations that cannot be compared.

    On each data set, only evaluations of the most common kind and protocol are kept.
    """
    counted: dict[str, list[Run]] = defaultdict(list)
    for group in groups:
        counted[group.first.dataset] += counted_runs(group)
    chosen = {dataset: most_common(runs) for dataset, runs in counted.items()}
    return [
        replace(group, runs=tuple(_keep_evaluation(run, chosen[run.dataset]) for run in group.runs))
        for group in groups
    ]


def _keep_evaluation(run: Run, evaluation: Evaluation | None) -> Run:
    if evaluation is None:
        return run
    records = evaluations(run).get(evaluation, [])
    return replace(run, linear={evaluation.kind: records} if records else {})
