"""The first answers of the page: is it alive, and how good is it, with the numbers that say so."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rdm_solo.report.measured import last, linear_accuracies
from rdm_solo.report.ranking import excluded_reason
from rdm_solo.report.verdicts import BOUNDS, dimensions, fate, in_words, shares
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
    """Whether a setting's runs collapsed, diverged, or still train."""
    runs = judged_runs(group)
    states = {state(run): fate(run)[1] for run in runs}
    counts = [f"{name} ({sum(state(r) == name for r in runs)} of {len(runs)})" for name in states]
    answer = counts[0].rpartition(" (")[0] if len(counts) == 1 else "; ".join(counts)
    goods = set(states.values())
    good = goods.pop() if len(goods) == 1 else None
    counted = counted_runs(group)
    numbers = [progress(group), *_numbers(counted)]
    return Answer("Is it alive?", answer, good, [line for line in numbers if line])


def state(run: Run) -> str:
    """Whether a run is alive, in a few words.

    What it says of a run with no sign of collapse is ``alive``; an open case is said as it is.
    """
    answer, good = fate(run)
    if good is False:
        return in_words(answer)
    return "alive" if good else answer.replace("no, but ", "not decided: ")


def progress(group: Group) -> str:
    """How far the runs came, and which still train or broke off."""
    counted = counted_runs(group)
    run = counted[0]
    said = so_far(run)
    if run.diverged is None and run.epochs < int(run.config.get("max_epochs", 0)):
        if run.summary.get("stopped"):
            said += ", stopped"
        elif failures.of(run.folder):
            said += ", failed"
        elif not run.summary or not was_closed(run.summary):
            said += ", still training or broken off"
    behind = ", ".join(f"seed {run.seed} ({so_far(run)})" for run in runs_behind(group))
    return f"{said}; not counted: {behind}" if behind else said


def _numbers(runs: Sequence[Run]) -> list[str]:
    """The numbers that collapse is judged by, beside their bounds, and the gap."""
    said = []
    if found := shares(runs):
        bound = f" (collapse: below {100 * (BOUNDS.variance or 0):g} %)"
        said.append(f"variance {spread(found, 1)} % of the second moment{bound}")
    if ranks := last(runs, "erank/centred"):
        k = max(map(dimensions, runs))
        of = f" of {k} (collapse: below {BOUNDS.directions(k):.1f})" if k else ""
        said.append(f"effective rank around the mean {spread(ranks, 1)}{of}")
    if last(runs, "erank/gap"):
        gap, online, target = (
            latest_in_words(runs, f"erank/{name}", 1) for name in ("gap", "online", "target")
        )
        said.append(f"gap {gap}: target {target}, online {online}")
    return said


def good(group: Group) -> Answer:
    """How accurate a setting is, with the epoch, the spread over seeds and the best epoch."""
    runs = counted_runs(group)
    found = [column for column in reversed(charts()[ACCURACY]) if last(runs, column.name)]
    numbers = []
    if linear := linear_accuracies(runs):
        numbers.append(f"{LINEAR.words} {spread(linear, LINEAR.digits)} %{_seeds(linear)}")
    for column in found:
        values, epoch = last(runs, column.name), max(r.last_measured(column.name) for r in runs)
        shown = spread(values, column.digits)
        numbers.append(
            f"{column.words} {shown} % in epoch {epoch}{_seeds(values)}{_peak(runs, column.name)}"
        )
    if not numbers:
        return Answer("How good is it?", "not measured", None, ["no labels, or switched off"])
    answer, *rest = numbers
    if not linear:
        rest.append("linear evaluation: python -m rdm_solo.linear run=FOLDER")
    return Answer(
        "How good is it?", answer.partition("; ")[0], None, [*answer.split("; ")[1:], *rest]
    )


def _seeds(values: Sequence[float]) -> str:
    """The range over seeds, where there are several."""
    if len(values) < 2:
        return ""
    return f"; n = {len(values)} seeds, {min(values):.1f} to {max(values):.1f}"


def _peak(runs: Sequence[Run], column: str) -> str:
    """The epoch in which a single run was better than at its end."""
    if len(runs) > 1:
        return ""
    run = runs[0]
    values = np.nan_to_num(run.metrics[column], nan=-math.inf)
    at = int(values.argmax())
    if values[at] <= run.last(column):
        return ""
    return f"; best {values[at]:.1f} % in epoch {int(run.metrics['epoch'][at])}"


def roll_call(groups: Sequence[Group]) -> Answer:
    """Of several settings: how many are alive, and which are not."""
    gone = {group.label: why for group in groups if (why := excluded_reason(group))}
    partly = {
        group.label: alive(group).answer
        for group in groups
        if group.label not in gone and any(fate(r)[1] is False for r in judged_runs(group))
    }
    whole = len(groups) - len(gone) - len(partly)
    said = [f"not ranked: {label}, {why}" for label, why in gone.items()]
    said += [f"some runs failed: {label}, {answer}" for label, answer in partly.items()]
    behind = [g.label for g in groups if g.label not in gone and _goes_on(g)]
    if behind:
        said.append(f"{len(behind)} of {len(groups)} settings have not reached their last epoch")
    answer = f"{whole} of {len(groups)} settings without a collapsed or diverged run"
    good = True if whole == len(groups) and not behind else None if whole else False
    return Answer("Are they alive?", answer, good, said[:6] + _more(len(said) - 6))


def _goes_on(group: Group) -> bool:
    run = counted_runs(group)[0]
    return run.epochs < int(run.config.get("max_epochs", 0))


def _more(count: int) -> list[str]:
    return [f"and {count} more in the table below"] if count > 0 else []
