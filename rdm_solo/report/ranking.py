"""Rank settings by accuracy, rank and gap, and check whether the seeds separate them."""

import statistics
from collections.abc import Sequence

from rdm_solo.ground.errors import join_first
from rdm_solo.report.judged import ACCURACIES, Setting
from rdm_solo.report.verdicts import Verdict, filter_causes_gap
from rdm_solo.runs.columns import COLUMNS, Column


def rankings(settings: Sequence[Setting]) -> list[Verdict]:
    """Return each data set's best healthy setting by accuracy, effective rank and gap."""
    by_dataset: dict[str, list[Setting]] = {}
    for setting in settings:
        healthy = by_dataset.setdefault(setting.group.first.dataset, [])
        if setting.ranked:
            healthy.append(setting)
    verdicts = []
    for dataset, healthy in by_dataset.items():
        suffix = f" on {dataset}" if len(by_dataset) > 1 else ""
        for question, column in (
            ("Which is the most accurate", accuracy(healthy)),
            ("Which has the highest rank", COLUMNS["erank/centred"]),
            ("Which has the widest gap", COLUMNS["erank/gap"]),
        ):
            if any(setting.last[column.name] for setting in healthy):
                verdicts.append(best(f"{question}{suffix}?", column, healthy))
    return verdicts


def accuracy(settings: Sequence[Setting]) -> Column:
    """Return the accuracy that most settings have; ties prefer linear, then kNN, then online."""
    counts = {}
    for column in ACCURACIES:
        counts[column] = sum(bool(setting.last[column.name]) for setting in settings)
    return max(counts, key=counts.__getitem__)


def best(question: str, column: Column, settings: Sequence[Setting]) -> Verdict:
    """Return the setting with the highest mean, and the settings that may be as good.

    They are within one standard deviation: the larger one of the two settings.
    """
    ranked, missing = [], []
    for setting in settings:
        values = setting.last[column.name]
        if values:
            ranked.append((statistics.fmean(values), setting))
        else:
            missing.append(setting.label)
    ranked.sort(key=lambda pair: -pair[0])
    highest, winner = ranked[0]
    tied, unknown = [], []
    for mean, other in ranked[1:]:
        seeds = (winner.last[column.name], other.last[column.name])
        deviations = [statistics.stdev(values) for values in seeds if len(values) > 1]
        if not deviations:
            unknown.append(other.label)
        elif highest - mean <= max(deviations):
            tied.append(other.label)
    sentences = []
    if len(ranked) == 1:
        sentences.append("No other setting is ranked.")
    elif not tied and not unknown:
        sentences.append("No other setting is within one standard deviation.")
    if tied:
        sentences.append(f"Within one standard deviation: {join_first(tied)}.")
    if unknown:
        sentences.append(f"Not compared, because one seed each: {join_first(unknown)}.")
    if missing:
        sentences.append(f"Not measured: {join_first(missing)}.")
    if column.name == "erank/gap" and filter_causes_gap(winner.group.first):
        sentences.append("The winner's filter alone causes a gap.")
    numbers = [" ".join(sentences)]
    if column.label not in question:
        numbers.insert(0, f"by {column.label}")
    return Verdict(question, winner.label, None, numbers)
