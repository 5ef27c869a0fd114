"""Linear accuracies that may be compared: on each data set those of one kind and protocol."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from rdm_solo.runs.folder import Run
from rdm_solo.runs.groups import Group, counted_runs
from rdm_solo.runs.linear_file import KINDS, Record

FEATURES = {"protocol": "augmented images", "cached": "cached features"}


class Evaluation(NamedTuple):
    """What accuracies must share to be averaged or ranked; the classifier's seed may differ."""

    kind: str
    protocol: str  # as JSON: equal protocols are equal text

    def __str__(self) -> str:
        return f"{FEATURES[self.kind]}, {self.protocol}"


def of_run(run: Run) -> dict[Evaluation, list[Record]]:
    """Return a run's evaluations, one entry for each seed of the classifier.

    Of each kind, the latest protocol comes first.
    """
    evaluations: dict[Evaluation, list[Record]] = {}
    for kind in KINDS:
        for entry in reversed(run.linear.get(kind, [])):
            numbers = json.loads(json.dumps(entry.get("protocol")), parse_int=float)  # 30 is 30.0
            evaluation = Evaluation(kind, json.dumps(numbers, sort_keys=True))
            evaluations.setdefault(evaluation, []).append(entry)
    return evaluations


def common(runs: Sequence[Run]) -> Evaluation | None:
    """Return the kind and protocol that most runs have; None if no run was evaluated.

    Ties go to the first of ``KINDS``, and within a kind to the latest protocol.
    """
    counts = Counter(evaluation for run in runs for evaluation in of_run(run))
    return max(counts, key=lambda e: (counts[e], -KINDS.index(e.kind)), default=None)


def comparable(groups: Sequence[Group]) -> list[Group]:
    """Return the settings with only the linear evaluations that are compared on their data set."""
    chosen = _by_dataset(groups)
    return [
        replace(group, runs=tuple(_only(run, chosen[run.dataset]) for run in group.runs))
        for group in groups
    ]


def not_compared(groups: Sequence[Group]) -> dict[Run, str]:
    """Return a reason for each evaluated run whose linear accuracy is not compared."""
    chosen = _by_dataset(groups)
    reasons = {}
    for run in [run for group in groups for run in group.runs]:
        evaluations, wanted = of_run(run), chosen[run.dataset]
        if wanted and evaluations and wanted not in evaluations:
            reasons[run] = (
                f"its linear accuracy ({next(iter(evaluations))}) is not compared: most runs on "
                f"{run.dataset} have another protocol ({wanted})"
            )
    return reasons


def _by_dataset(groups: Sequence[Group]) -> dict[str, Evaluation | None]:
    """Return what is compared on each data set: what most counted runs have."""
    names = {run.dataset for group in groups for run in group.runs}
    runs = [run for group in groups for run in counted_runs(group)]
    return {name: common([run for run in runs if run.dataset == name]) for name in names}


def _only(run: Run, evaluation: Evaluation | None) -> Run:
    if evaluation is None:
        return run
    entries = of_run(run).get(evaluation, [])
    return replace(run, linear={evaluation.kind: entries} if entries else {})
