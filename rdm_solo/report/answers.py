"""Answer the page's first questions: is it alive, and how good is it?"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rdm_solo.report import verdicts
from rdm_solo.report.measured import last, linear_accuracies
from rdm_solo.report.ranking import excluded_reason, rankings
from rdm_solo.report.verdicts import Verdict, outcome
from rdm_solo.runs import ownership
from rdm_solo.runs.columns import ACCURACY, LINEAR, Column, charts
from rdm_solo.runs.folder import Run, is_final
from rdm_solo.runs.groups import Group, counted_runs, judged_runs, mean_std, uncounted_runs

LIMIT = 6  # lines of the overview


def first_answers(groups: Sequence[Group]) -> list[Verdict]:
    """Return the answers at the top of the page, for one setting or several."""
    if len(groups) == 1:
        return [health(groups[0]), accuracy(groups[0])]
    best = [ranking.verdict for ranking in rankings(groups)]
    return [overview(groups), *best] if groups else []


def health(group: Group) -> Verdict:
    """Return the verdict on a setting's health, with the progress of its runs."""
    verdict = verdicts.health(judged_runs(group))
    return replace(verdict, numbers=[progress(group), *verdict.numbers])


def progress(group: Group) -> str:
    """Return the progress of the counted runs and of each seed that is not counted."""
    run = counted_runs(group)[0]
    text = run.progress
    if run.diverged is None and not _finished(group):
        if run.summary.get("stopped"):
            text += ", stopped"
        elif ownership.failure(run.folder):
            text += ", failed"
        elif not run.summary or not is_final(run.summary):
            text += ", still training or interrupted"
    behind = ", ".join(f"seed {run.seed} ({run.progress})" for run in uncounted_runs(group))
    return f"{text}; not counted: {behind}" if behind else text


def accuracy(group: Group) -> Verdict:
    """Return a setting's accuracies, with the epoch, the range over seeds and the best epoch."""
    runs = counted_runs(group)
    linear = linear_accuracies(runs)
    lines = []
    if linear:
        lines.append([f"{LINEAR.label} {mean_std(linear, LINEAR.digits)} %", *_range(linear)])
    for column in reversed(charts()[ACCURACY]):
        if values := last(runs, column.name):
            epoch = max(run.last_measured(column.name) for run in runs)
            text = f"{column.label} {mean_std(values, column.digits)} % in epoch {epoch}"
            details = [*_range(values), *_peak(runs, column.name)]
            lines.append([text, *details, *_untrained(runs, column)])
    if not lines:
        lines.append(["not measured", "no labels, or switched off"])
    elif not linear:
        lines.append(["linear evaluation: python -m rdm_solo.linear run=FOLDER"])
    (answer, *details), *others = lines
    return Verdict("How good is it?", answer, None, [*details, *map("; ".join, others)])


def _range(values: Sequence[float]) -> list[str]:
    """Return the range over seeds if there are several."""
    if len(values) < 2:
        return []
    return [f"n = {len(values)} seeds, {min(values):.1f} to {max(values):.1f}"]


def _peak(runs: Sequence[Run], column: str) -> list[str]:
    """Return the best accuracy of a single run if its last accuracy is lower."""
    values = np.nan_to_num(runs[0].metrics[column], nan=-math.inf)
    best = int(values.argmax())
    if len(runs) > 1 or values[best] <= runs[0].last(column):
        return []
    return [f"best {values[best]:.1f} % in epoch {int(runs[0].metrics['epoch'][best])}"]


def _untrained(runs: Sequence[Run], column: Column) -> list[str]:
    """Return the runs' mean accuracy from before the first step, if it was measured."""
    values = [run.untrained[column.name] for run in runs if column.name in run.untrained]
    return [f"{mean_std(values, column.digits)} % before training"] if values else []


def overview(groups: Sequence[Group]) -> Verdict:
    """Return how many of several settings are healthy, and list the others."""
    lines = []
    for group in groups:
        if reason := excluded_reason(group):
            lines.append(f"not ranked: {group.label}, {reason}")
        elif not all(outcome(run).healthy for run in judged_runs(group)):
            lines.append(f"some runs not healthy: {group.label}, {health(group).answer}")
    healthy = len(groups) - len(lines)
    unfinished = [g for g in groups if not excluded_reason(g) and not _finished(g)]
    if unfinished:
        lines.append(f"{len(unfinished)} of {len(groups)} settings have not finished")
    epochs = sorted({counted_runs(group)[0].epochs for group in groups})
    if len(epochs) > 1:
        lines.append(f"{epochs[0]} to {epochs[-1]} epochs, which favours the longer runs")
    answer = f"{healthy} of {len(groups)} settings healthy"
    good = None if healthy and (unfinished or healthy < len(groups)) else bool(healthy)
    more = [f"and {len(lines) - LIMIT} more in the table below"] if len(lines) > LIMIT else []
    return Verdict("Are they alive?", answer, good, [*lines[:LIMIT], *more])


def _finished(group: Group) -> bool:
    run = counted_runs(group)[0]
    return run.epochs >= int(run.config.get("max_epochs", 0))
