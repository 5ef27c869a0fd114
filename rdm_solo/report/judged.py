"""Judge settings once: the page, its tables and its answers read the result."""

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from rdm_solo.report.verdicts import JudgedRun, Verdict, judge_run, verdicts
from rdm_solo.runs.columns import ACCURACY, LINEAR, Column, charts
from rdm_solo.runs.folder import RunFolder
from rdm_solo.runs.groups import Group, format_latest, latest, mean_std

EPOCH_ACCURACIES = charts()[ACCURACY][::-1]  # kNN, online
ACCURACIES = [LINEAR, *EPOCH_ACCURACIES]
# Kinds of linear evaluation. protocol: new augmentations in each epoch; cached: features extracted
# once.
KINDS = ("protocol", "cached")


class Evaluation(NamedTuple):
    """Kind and protocol of a linear evaluation; only accuracies with equal ones are compared."""

    kind: str
    protocol: str  # as JSON: equal protocols are equal text


@dataclass(frozen=True)
class Setting:
    """A group of runs with its verdicts and last values."""

    group: Group
    judged_runs: Sequence[JudgedRun]
    lead: Verdict
    low_pass: Verdict
    health: Verdict  # with the progress of unfinished runs
    evaluation: Evaluation | None  # the linear evaluation that is compared on the data set
    ranked: bool  # whether at least one of its runs is healthy

    @property
    def label(self) -> str:
        return self.group.label

    @property
    def counted(self) -> list[RunFolder]:
        """The runs in means, bands and n."""
        return self.group.counted

    @property
    def finished(self) -> bool:
        run = self.counted[0]
        return run.epochs >= int(run.config.get("max_epochs", 0))

    def last(self, column: str) -> list[float]:
        """Return the counted runs' last values of a column, one per run."""
        return last(self.counted, column, self.evaluation)

    def text(self, column: Column) -> str:
        """Return mean ± standard deviation of the last values."""
        if column == LINEAR:
            return mean_std(self.last(column.name), column.digits)
        return format_latest(self.counted, column.name, column.digits)


def judge(groups: Sequence[Group]) -> list[Setting]:
    """Judge each setting and compute its last values."""
    compared = compared_evaluations(groups)
    settings = []
    for group in groups:
        runs = {run: judge_run(run) for run in group.runs}
        judged = [runs[run] for run in group.judged]
        setting = Setting(
            group,
            list(runs.values()),
            *verdicts(judged),
            evaluation=compared[group.first.dataset],
            ranked=any(each.alive.healthy for each in judged),
        )
        # The verdict on health, which the page shows first, starts with the progress.
        progress = []
        if not setting.finished and not group.diverged:
            progress.append(group.counted[0].progress)
        behind = [f"seed {run.seed} ({run.progress})" for run in group.uncounted]
        if behind:
            progress.append(f"not counted: {', '.join(behind)}")
        health = replace(setting.health, numbers=[*progress, *setting.health.numbers])
        settings.append(replace(setting, health=health))
    return settings


def evaluations(run: RunFolder) -> dict[Evaluation, list[dict[str, Any]]]:
    """Return a run's evaluations, one record for each seed of the classifier.

    Within a kind, the latest protocol comes first.
    """
    records: dict[Evaluation, list[dict[str, Any]]] = {}
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
    _, values = latest(runs, column)
    return values
