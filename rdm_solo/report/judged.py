"""Judge settings once: the page, its tables and its answers read the result."""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from rdm_solo.report.verdicts import JudgedRun, Verdict, judge_run, verdicts
from rdm_solo.runs.columns import ACCURACY, COLUMNS, LINEAR, charts
from rdm_solo.runs.folder import RunFolder
from rdm_solo.runs.groups import (
    Group,
    format_latest,
    latest,
    mean_std,
)
from rdm_solo.runs.linear_file import KINDS, Record

EPOCH_ACCURACIES = charts()[ACCURACY][::-1]  # kNN, online
ACCURACIES = [LINEAR, *EPOCH_ACCURACIES]


class Evaluation(NamedTuple):
    """Kind and protocol of a linear evaluation; only accuracies with equal ones are compared."""

    kind: str
    protocol: str  # as JSON: equal protocols are equal text


@dataclass(frozen=True)
class Setting:
    """A group of runs with its verdicts and last values.

    ``last`` and ``text`` have the counted runs' last values of each column: one value per run, and
    mean ± standard deviation.
    """

    label: str
    group: Group
    judged_runs: Sequence[JudgedRun]
    counted: Sequence[RunFolder]  # the runs in means, bands and n
    lead: Verdict
    low_pass: Verdict
    health: Verdict  # with the progress of unfinished runs
    evaluation: Evaluation | None  # the linear evaluation that is compared on the data set
    last: Mapping[str, Sequence[float]]
    text: Mapping[str, str]
    finished: bool
    ranked: bool  # whether at least one of its runs is healthy


def judge(groups: Sequence[Group]) -> list[Setting]:
    """Judge each setting and compute its last values."""
    compared = compared_evaluations(groups)
    settings = []
    for group in groups:
        runs = {run: judge_run(run) for run in group.runs}
        judged = [runs[run] for run in group.judged]
        lead, low_pass, health = verdicts(judged)
        counted = group.counted
        # The verdict on health, which the page shows first, starts with the progress.
        counted_run = counted[0]
        finished = counted_run.epochs >= int(counted_run.config.get("max_epochs", 0))
        progress = []
        if not finished and counted_run.diverged is None:
            progress.append(counted_run.progress)
        behind = [f"seed {run.seed} ({run.progress})" for run in group.uncounted]
        if behind:
            progress.append(f"not counted: {', '.join(behind)}")
        evaluation = compared[counted_run.dataset]
        linear = last(counted, LINEAR.name, evaluation)
        last_values = {LINEAR.name: linear}
        text = {LINEAR.name: mean_std(linear, LINEAR.digits)}
        for column in COLUMNS.values():
            last_values[column.name] = group.last(column.name)
            text[column.name] = format_latest(counted, column.name, column.digits)
        settings.append(
            Setting(
                label=group.label,
                group=group,
                judged_runs=list(runs.values()),
                counted=counted,
                lead=lead,
                low_pass=low_pass,
                health=replace(health, numbers=[*progress, *health.numbers]),
                evaluation=evaluation,
                last=last_values,
                text=text,
                finished=finished,
                ranked=any(each.alive.healthy for each in judged),
            )
        )
    return settings


def evaluations(run: RunFolder) -> dict[Evaluation, list[Record]]:
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


def most_common(runs: Sequence[RunFolder]) -> Evaluation | None:
    """Return the kind and protocol that most runs have; None if no run was evaluated.

    Ties go to the first of ``KINDS``, and within a kind to the latest protocol.
    """
    counts: Counter[Evaluation] = Counter()
    for run in runs:
        counts.update(evaluations(run).keys())
    candidates = sorted(counts, key=lambda evaluation: KINDS.index(evaluation.kind))
    return max(candidates, key=counts.__getitem__, default=None)


def compared_evaluations(groups: Sequence[Group]) -> dict[str, Evaluation | None]:
    """Return the most common kind and protocol on each data set; other runs are not compared."""
    counted: dict[str, list[RunFolder]] = defaultdict(list)
    for group in groups:
        counted[group.first.dataset] += group.counted
    return {dataset: most_common(runs) for dataset, runs in counted.items()}


def linear_accuracies(
    runs: Sequence[RunFolder], evaluation: Evaluation | None, top: str = "top1"
) -> list[float]:
    """Return each run's accuracy in this evaluation, a mean over its classifier's seeds."""
    accuracies = []
    for run in runs:
        records = evaluations(run)
        if evaluation in records:
            seeds = [record[top] for record in records[evaluation]]
            accuracies.append(float(np.mean(seeds)))
    return accuracies


def last(
    runs: Sequence[RunFolder], column: str, evaluation: Evaluation | None = None
) -> list[float]:
    """Return the runs' values in the last epoch in which a column was measured.

    Linear accuracies are of one evaluation, by default the most common.
    """
    if column == LINEAR.name:
        return linear_accuracies(runs, evaluation or most_common(runs))
    return latest(runs, column)[1]
