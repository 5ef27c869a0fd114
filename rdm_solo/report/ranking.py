"""Rank settings by accuracy, rank and gap, and check whether the seeds separate them."""

import statistics
from collections.abc import Sequence

from rdm_solo.ground.errors import join_first
from rdm_solo.report.measured import last
from rdm_solo.report.verdicts import Verdict, filter_causes_gap, outcome
from rdm_solo.runs.columns import ACCURACY, COLUMNS, LINEAR, Column, charts
from rdm_solo.runs.groups import Group, counted_runs, judged_runs

Ranked = tuple[Group, Sequence[float]]  # a setting, and a column's last value of each seed


def rankings(groups: Sequence[Group]) -> list[Verdict]:
    """Return each data set's best healthy setting by accuracy, effective rank and gap."""
    result = []
    datasets = list(dict.fromkeys(group.first.dataset for group in groups))
    for dataset in datasets if len(groups) > 1 else []:
        healthy = [g for g in groups if g.first.dataset == dataset and not excluded_reason(g)]
        suffix = f" on {dataset}" if len(datasets) > 1 else ""
        for question, column in (
            ("Which is the most accurate", accuracy(healthy)),
            ("Which has the highest rank", COLUMNS["erank/centred"]),
            ("Which has the widest gap", COLUMNS["erank/gap"]),
        ):
            ranked = [(g, values) for g in healthy if (values := _values(g, column))]
            if ranked:
                ranked.sort(key=lambda setting: -statistics.fmean(setting[1]))
                missing = [group.label for group in healthy if not _values(group, column)]
                result.append(_best(f"{question}{suffix}?", column, ranked, missing))
    return result


def accuracy(groups: Sequence[Group]) -> Column:
    """Return the accuracy that most settings have; ties prefer linear, then kNN, then online."""
    columns = [LINEAR, *reversed(charts()[ACCURACY])]
    return max(columns, key=lambda column: sum(bool(_values(g, column)) for g in groups))


def is_tied(first: Sequence[float], other: Sequence[float]) -> bool | None:
    """Return whether two means differ by at most the larger standard deviation of the two.

    None means that neither setting has two seeds.
    """
    deviations = [statistics.stdev(values) for values in (first, other) if len(values) > 1]
    difference = abs(statistics.fmean(first) - statistics.fmean(other))
    return difference <= max(deviations) if deviations else None


def excluded_reason(group: Group) -> str:
    """Return why a setting is not ranked; empty if at least one of its runs is healthy."""
    outcomes = [outcome(run) for run in judged_runs(group)]
    if any(each.healthy for each in outcomes):
        return ""
    return join_first(dict.fromkeys(each.answer for each in outcomes))


def _values(group: Group, column: Column) -> list[float]:
    return last(counted_runs(group), column.name)


def _best(
    question: str, column: Column, order: Sequence[Ranked], missing: Sequence[str]
) -> Verdict:
    first, _ = order[0]
    sentences = [_others(order)]
    if missing:
        sentences.append(f"Not measured: {join_first(missing)}.")
    if column.name == "erank/gap" and filter_causes_gap(first.first):
        sentences.append("The winner's filter alone causes a gap.")
    measure = [] if column.label in question else [f"by {column.label}"]
    numbers = [*measure, " ".join(sentences)]
    return Verdict(question, first.label, None, numbers)


def _others(order: Sequence[Ranked]) -> str:
    """Name the settings that the seeds do not separate from the best."""
    (_, best), *rest = order
    if not rest:
        return "No other setting is ranked."
    answers = {other.label: is_tied(best, values) for other, values in rest}
    tied = [label for label, answer in answers.items() if answer]
    unknown = [label for label, answer in answers.items() if answer is None]
    sentences = [f"Within one standard deviation: {join_first(tied)}."] if tied else []
    if unknown:
        sentences.append(f"Not compared, because one seed each: {join_first(unknown)}.")
    return " ".join(sentences) or "No other setting is within one standard deviation."
