"""Return the last values of a setting's runs and their comparable linear accuracies."""

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rdm_solo.runs.columns import ACCURACY, LINEAR, charts
from rdm_solo.runs.folder import Run
from rdm_solo.runs.groups import Group, counted_runs, latest
from rdm_solo.runs.linear_file import KINDS, Record

ACCURACIES = [LINEAR, *reversed(charts()[ACCURACY])]  # linear, kNN, online


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
            text = json.dumps(record.get("protocol"))
            protocol = json.loads(text, parse_int=float)  # 30 equals 30.0
            evaluation = Evaluation(kind, json.dumps(protocol, sort_keys=True))
            records.setdefault(evaluation, []).append(record)
    return records


def most_common(runs: Sequence[Run]) -> Evaluation | None:
    """Return the kind and protocol that most runs have; None if no run was evaluated.

    Ties go to the first of ``KINDS``, and within a kind to the latest protocol.
    """
    counts: Counter[Evaluation] = Counter()
    for run in runs:
        counts.update(evaluations(run).keys())
    return max(counts, key=lambda e: (counts[e], -KINDS.index(e.kind)), default=None)


def compared_evaluations(groups: Sequence[Group]) -> dict[str, Evaluation | None]:
    """Return the most common kind and protocol on each data set; other runs are not compared."""
    counted: dict[str, list[Run]] = defaultdict(list)
    for group in groups:
        counted[group.first.dataset] += counted_runs(group)
    return {dataset: most_common(runs) for dataset, runs in counted.items()}


def linear_accuracies(
    runs: Sequence[Run], evaluation: Evaluation | None, top: str = "top1"
) -> list[float]:
    """Return each run's accuracy in this evaluation, a mean over its classifier's seeds."""
    accuracies = []
    for run in runs:
        records = evaluations(run)
        if evaluation in records:
            accuracies.append(float(np.mean([record[top] for record in records[evaluation]])))
    return accuracies


def last(runs: Sequence[Run], column: str, evaluation: Evaluation | None = None) -> list[float]:
    """Return the runs' values in the last epoch in which a column was measured.

    Linear accuracies are of one evaluation, by default the most common.
    """
    if column == LINEAR.name:
        return linear_accuracies(runs, evaluation or most_common(runs))
    return latest(runs, column)[1]
