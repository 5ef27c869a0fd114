"""Judge settings once: the page, its tables and its answers read the result."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rdm_solo.report.measured import Evaluation, compared_evaluations, last
from rdm_solo.report.verdicts import JudgedRun, Verdict, judge_run, verdicts
from rdm_solo.runs.columns import COLUMNS, LINEAR
from rdm_solo.runs.folder import Run
from rdm_solo.runs.groups import (
    Group,
    counted_runs,
    format_latest,
    judged_runs,
    mean_std,
    uncounted_runs,
)


@dataclass(frozen=True)
class Setting:
    """A group of runs with its verdicts and last values.

    ``last`` and ``text`` have the counted runs' last values of each column: one value per run, and
    mean ± standard deviation.
    """

    label: str
    group: Group
    runs: Sequence[JudgedRun]
    counted: Sequence[Run]  # the runs in means, bands and n
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
    evaluations = compared_evaluations(groups)
    settings = []
    for group in groups:
        runs = {run: judge_run(run) for run in group.runs}
        judged = [runs[run] for run in judged_runs(group)]
        lead, low_pass, health = verdicts(judged)
        counted = counted_runs(group)
        # The verdict on health, which the page shows first, starts with the progress.
        first = counted[0]
        finished = first.epochs >= int(first.config.get("max_epochs", 0))
        progress = []
        if not finished and first.diverged is None:
            progress.append(first.progress)
        behind = [f"seed {run.seed} ({run.progress})" for run in uncounted_runs(group)]
        if behind:
            progress.append(f"not counted: {', '.join(behind)}")
        last_values, text = {}, {}
        evaluation = evaluations[first.dataset]
        for column in COLUMNS.values():
            last_values[column.name] = last(counted, column.name, evaluation)
            text[column.name] = format_latest(counted, column.name, column.digits)
        last_values[LINEAR.name] = last(counted, LINEAR.name, evaluation)
        text[LINEAR.name] = mean_std(last_values[LINEAR.name], LINEAR.digits)
        settings.append(
            Setting(
                label=group.label,
                group=group,
                runs=list(runs.values()),
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
