"""The first answers of the page: is it alive, and how good is it?"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rdm_solo.report.measured import last, linear_accuracies
from rdm_solo.report.ranking import excluded_reason
from rdm_solo.report.verdicts import BOUNDS, dimensions, outcome, shares
from rdm_solo.runs import failures
from rdm_solo.runs.columns import ACCURACY, LINEAR, charts
from rdm_solo.runs.folder import Run, was_closed
from rdm_solo.runs.groups import (
    Group,
    counted_runs,
    judged_runs,
    latest_in_words,
    runs_behind,
    so_far,
    spread,
)


@dataclass(frozen=True)
class Answer:
    """A question, its answer in a few words, whether that is good (None: open), and the numbers."""

    question: str
    answer: str
    good: bool | None
    numbers: Sequence[str]


def alive(group: Group) -> Answer:
    """Return whether a setting's runs collapsed, diverged, or still train."""
    runs = judged_runs(group)
    counts = Counter(outcome(run).alive for run in runs)
    answer = next(iter(counts))
    if len(counts) > 1:
        answer = "; ".join(f"{state} ({n} of {len(runs)})" for state, n in counts.items())
    goods = {outcome(run).good for run in runs}
    numbers = [progress(group), *_numbers(counted_runs(group))]
    return Answer("Is it alive?", answer, goods.pop() if len(goods) == 1 else None, numbers)


def progress(group: Group) -> str:
    """Return how far the runs came, and which still train or broke off."""
    run = counted_runs(group)[0]
    text = so_far(run)
    if run.diverged is None and not _finished(group):
        if run.summary.get("stopped"):
            text += ", stopped"
        elif failures.of(run.folder):
            text += ", failed"
        elif not run.summary or not was_closed(run.summary):
            text += ", still training or broken off"
    behind = ", ".join(f"seed {run.seed} ({so_far(run)})" for run in runs_behind(group))
    return f"{text}; not counted: {behind}" if behind else text


def _numbers(runs: Sequence[Run]) -> list[str]:
    """Return the numbers that collapse is judged by, beside their bounds, and the gap."""
    lines = []
    if variances := shares(runs):
        bound = f" (collapse: below {100 * (BOUNDS.variance or 0):g} %)"
        lines.append(f"variance {spread(variances, 1)} % of the second moment{bound}")
    if ranks := last(runs, "erank/centred"):
        k = max(map(dimensions, runs))
        of = f" of {k} (collapse: below {BOUNDS.directions(k):.1f})" if k else ""
        lines.append(f"effective rank around the mean {spread(ranks, 1)}{of}")
    if last(runs, "erank/gap"):
        gap, online, target = (
            latest_in_words(runs, f"erank/{name}", 1) for name in ("gap", "online", "target")
        )
        lines.append(f"gap {gap}: target {target}, online {online}")
    return lines


def good(group: Group) -> Answer:
    """Return how accurate a setting is, with the epoch, the seeds and the best epoch."""
    runs = counted_runs(group)
    lines = []
    if linear := linear_accuracies(runs):
        lines.append([f"{LINEAR.words} {spread(linear, LINEAR.digits)} %", *_seeds(linear)])
    for column in reversed(charts()[ACCURACY]):
        if values := last(runs, column.name):
            epoch = max(run.last_measured(column.name) for run in runs)
            text = f"{column.words} {spread(values, column.digits)} % in epoch {epoch}"
            lines.append([text, *_seeds(values), *_peak(runs, column.name)])
    if not lines:
        return Answer("How good is it?", "not measured", None, ["no labels, or switched off"])
    if not linear:
        lines.append(["linear evaluation: python -m rdm_solo.linear run=FOLDER"])
    (answer, *details), *others = lines
    return Answer("How good is it?", answer, None, [*details, *map("; ".join, others)])


def _seeds(values: Sequence[float]) -> list[str]:
    """Return the range over seeds, where there are several."""
    if len(values) < 2:
        return []
    return [f"n = {len(values)} seeds, {min(values):.1f} to {max(values):.1f}"]


def _peak(runs: Sequence[Run], column: str) -> list[str]:
    """Return the epoch in which a single run was better than at its end."""
    values = np.nan_to_num(runs[0].metrics[column], nan=-math.inf)
    at = int(values.argmax())
    if len(runs) > 1 or values[at] <= runs[0].last(column):
        return []
    return [f"best {values[at]:.1f} % in epoch {int(runs[0].metrics['epoch'][at])}"]


def overview(groups: Sequence[Group]) -> Answer:
    """Return how many of several settings are alive, and which are not."""
    excluded = {group.label: why for group in groups if (why := excluded_reason(group))}
    partly = {
        group.label: alive(group).answer
        for group in groups
        if group.label not in excluded
        and any(outcome(run).good is False for run in judged_runs(group))
    }
    healthy = len(groups) - len(excluded) - len(partly)
    lines = [f"not ranked: {label}, {why}" for label, why in excluded.items()]
    lines += [f"some runs failed: {label}, {answer}" for label, answer in partly.items()]
    unfinished = [g for g in groups if g.label not in excluded and not _finished(g)]
    if unfinished:
        lines.append(
            f"{len(unfinished)} of {len(groups)} settings have not reached their last epoch"
        )
    answer = f"{healthy} of {len(groups)} settings healthy"
    good = None if healthy and (unfinished or healthy < len(groups)) else bool(healthy)
    more = [f"and {len(lines) - 6} more in the table below"] if len(lines) > 6 else []
    return Answer("Are they alive?", answer, good, lines[:6] + more)


def _finished(group: Group) -> bool:
    run = counted_runs(group)[0]
    return run.epochs >= int(run.config.get("max_epochs", 0))
