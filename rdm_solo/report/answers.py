"""Answer the page's first questions: what was compared, is it alive, and how good is it?"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rdm_solo.ground.errors import join_first
from rdm_solo.report import verdicts
from rdm_solo.report.measured import last, linear_accuracies
from rdm_solo.report.ranking import excluded_reason, rankings
from rdm_solo.report.verdicts import Verdict, outcome
from rdm_solo.runs import ownership
from rdm_solo.runs.columns import ACCURACY, LINEAR, Column, charts
from rdm_solo.runs.folder import Run, is_final
from rdm_solo.runs.groups import Group, counted_runs, judged_runs, mean_std, uncounted_runs

LIMIT = 6  # filters or methods in the title


def title(groups: Sequence[Group]) -> str:
    """Return what was compared, such as ``SimSiam, target filter σ^p, p = -1 … -0.3, 4 runs``."""
    runs = [run for group in groups for run in group.runs]
    words = [groups[0].label]
    if len(groups) > 1:
        methods = list(dict.fromkeys(group.method for group in groups))
        families = [group.family.removesuffix(group.suffix.strip()).strip() for group in groups]
        names = [f"{g.method}, {family}".strip(", ") for g, family in zip(groups, families)]
        names = [*filter(None, dict.fromkeys(families if len(methods) == 1 else names))]
        exponents = sorted({p for group in groups if (p := group.first.p) is not None})
        words = methods if len(methods) == 1 else []
        words.append("; ".join(names) if len(names) < LIMIT else join_first(names))
        if len(exponents) > 1:
            words.append(f"p = {exponents[0]:g} … {exponents[-1]:g}")
        elif exponents:
            words[-1] = words[-1].replace("^p", f"^{exponents[0]:g}")
        if len(names or methods) * max(1, len(exponents)) < len(groups):  # other options differ
            words.append(f"{len(groups)} settings")
    words.append(f"{len(runs)} runs" if len(runs) > 1 else f"seed {runs[0].seed}")
    epochs = sorted({counted_runs(group)[0].epochs for group in groups})
    if len(groups) == 1 and not _finished(groups[0]):
        words.append(counted_runs(groups[0])[0].progress)
    else:
        ends = dict.fromkeys(map(str, (epochs[0], epochs[-1])))
        words.append(f"{' to '.join(ends)} epoch{'s' * (epochs != [1])}")
    return ", ".join(filter(None, words))


def first_answers(groups: Sequence[Group]) -> list[Verdict]:
    """Return the answers at the top of the page, for one setting or several."""
    if len(groups) == 1:
        lead, low_pass, _ = verdicts.verdicts(judged_runs(groups[0]))
        return [health(groups[0]), accuracy(groups[0]), lead, low_pass]
    return [overview(groups), *rankings(groups)] if groups else []


def health(group: Group) -> Verdict:
    """Return the verdict on a setting's health, with the progress of unfinished runs."""
    verdict = verdicts.health(judged_runs(group))
    return replace(verdict, numbers=[*progress(group), *verdict.numbers])


def progress(group: Group) -> list[str]:
    """Return the progress of the counted runs, if unfinished, and of seeds that do not count."""
    run = counted_runs(group)[0]
    lines = []
    if run.diverged is None and not _finished(group):
        reason = ""
        if run.summary.get("stopped"):
            reason = ", stopped"
        elif ownership.failure(run.folder):
            reason = ", failed"
        elif not run.summary or not is_final(run.summary):
            reason = ", still training or interrupted"
        lines.append(run.progress + reason)
    behind = ", ".join(f"seed {run.seed} ({run.progress})" for run in uncounted_runs(group))
    return [*lines, f"not counted: {behind}"] if behind else lines


def accuracy(group: Group) -> Verdict:
    """Return a setting's accuracies, with the range over seeds and the best epoch."""
    runs = counted_runs(group)
    linear = linear_accuracies(runs)
    lines = []
    if linear:
        lines.append([f"{LINEAR.label} {mean_std(linear, LINEAR.digits)} %", *_range(linear)])
    for column in reversed(charts()[ACCURACY]):
        if values := last(runs, column.name):
            epoch = max(run.last_measured(column.name) for run in runs)
            when = f" in epoch {epoch}" if epoch < runs[0].last_epoch else ""
            text = f"{column.label} {mean_std(values, column.digits)} %{when}"
            details = [*_range(values), *_peak(runs, column.name)]
            lines.append([text, *details, *_untrained(runs, column)])
    if not lines:
        lines.append(["not measured", "no labels, or switched off"])
    elif not linear and "watched" not in runs[0].config:  # a watch saves no weights
        lines.append(["linear evaluation: rdm-solo linear run=FOLDER"])
    (answer, *details), *others = lines
    return Verdict("How good is it?", answer, None, [*details, *map("; ".join, others)])


def _range(values: Sequence[float]) -> list[str]:
    """Return the range over seeds if there are several."""
    if len(values) < 2:
        return []
    return [f"{len(values)} seeds from {min(values):.1f} to {max(values):.1f} %"]


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
    outcomes = {group: [outcome(run) for run in judged_runs(group)] for group in groups}
    healthy = [g for g in groups if all(each.good for each in outcomes[g])]
    sick = [g for g in groups if not all(each.healthy for each in outcomes[g])]
    unfinished = [g for g in groups if not excluded_reason(g) and not _finished(g)]
    lines = []
    if unfinished:
        lines.append(f"{len(unfinished)} of {len(groups)} settings have not finished")
    if len({counted_runs(group)[0].epochs for group in groups}) > 1:
        lines.append("The settings have unequal numbers of epochs, which favours the longer runs.")
    for reason, members in (
        ("not ranked", [g for g in sick if excluded_reason(g)]),
        ("not healthy in some seeds", [g for g in sick if not excluded_reason(g)]),
        ("not judged", [g for g in groups if g not in healthy and g not in sick]),
    ):
        if members:
            lines.append(f"{reason}: {join_first([group.label for group in members])}")
    answer = f"{len(healthy)} of {len(groups)} settings healthy"
    all_bad = all(verdicts.health(judged_runs(group)).level == "bad" for group in groups)
    good = True if len(healthy) == len(groups) and not unfinished else False if all_bad else None
    return Verdict("Are they alive?", answer, good, lines, suspect=bool(sick))


def _finished(group: Group) -> bool:
    run = counted_runs(group)[0]
    return run.epochs >= int(run.config.get("max_epochs", 0))
