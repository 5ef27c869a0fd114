"""Which setting is best: by accuracy, by rank and by gap, with what a spread over seeds allows."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from rdm_solo.messages import listed
from rdm_solo.report.measured import last
from rdm_solo.report.verdicts import fate, in_words, made_by_filter
from rdm_solo.runs.columns import ACCURACY, COLUMNS, LINEAR, Column, charts
from rdm_solo.runs.groups import Group, counted_runs, judged_runs, latest, spread

RANKS = ("erank/centred", "erank/projection", "erank/target")


@dataclass(frozen=True, eq=False)
class Standing:
    """A setting's last values of one column, a value for each seed that has it."""

    group: Group
    values: Sequence[float]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float:
        """Over the seeds; NaN of one seed."""
        return statistics.stdev(self.values) if len(self.values) > 1 else math.nan


@dataclass(frozen=True)
class Best:
    """What is asked, the settings from the best down, and in words: the best one, its value, and
    what stands close to it."""

    question: str
    column: Column
    standings: Sequence[Standing]
    label: str
    value: str
    others: str


def best(groups: Sequence[Group]) -> list[Best]:
    """The best setting by accuracy, by rank and by gap on each data set, of those that neither
    collapsed nor diverged; what none of them has is left out."""
    found = []
    datasets = list(dict.fromkeys(group.first.dataset for group in groups))
    for dataset in datasets:
        alive = [g for g in groups if g.first.dataset == dataset and not lost(g)]
        where = f" on {dataset}" if len(datasets) > 1 else ""
        for asked, column in (
            ("Which is the most accurate", accuracy(alive)),
            ("Which has the highest rank", _first_measured(alive, RANKS)),
            ("Which has the widest gap", COLUMNS["erank/gap"]),
        ):
            if ordered := standings(alive, column):
                found.append(_best(f"{asked}{where}?", column, ordered, alive))
    return found


def accuracy(groups: Sequence[Group]) -> Column:
    """The accuracy that most settings have: linear evaluation before kNN's and the online one."""
    columns = [LINEAR, *reversed(charts()[ACCURACY])]
    return max(columns, key=lambda column: sum(bool(_values(g, column)) for g in groups))


def standings(groups: Sequence[Group], column: Column) -> list[Standing]:
    """The settings that have the column, the highest mean first."""
    found = [Standing(group, values) for group in groups if (values := _values(group, column))]
    return sorted(found, key=lambda standing: -standing.mean)


def close(first: Standing, other: Standing) -> bool | None:
    """Whether two means differ by no more than the larger standard deviation of the two; None where
    neither setting has two seeds."""
    known = [d for d in (first.deviation, other.deviation) if not math.isnan(d)]
    return abs(first.mean - other.mean) <= max(known) if known else None


def lost(group: Group) -> str:
    """Why no run of a setting counts, where all of them collapsed or diverged; else nothing."""
    fates = [fate(run) for run in judged_runs(group)]
    if any(good is not False for _, good in fates):
        return ""
    return listed(dict.fromkeys(in_words(answer) for answer, _ in fates))


def _values(group: Group, column: Column) -> list[float]:
    return last(counted_runs(group), column.name)


def _first_measured(groups: Sequence[Group], names: Sequence[str]) -> Column:
    return COLUMNS[next((n for n in names if any(g.last(n) for g in groups)), names[0])]


def _best(
    question: str, column: Column, ordered: Sequence[Standing], alive: Sequence[Group]
) -> Best:
    first, *rest = ordered
    unit = " %" if column.chart == ACCURACY else ""
    epoch = latest(counted_runs(first.group), column.name)[0]
    when = f", epoch {epoch}" if epoch else ""
    value = f"{column.words} {_shown(first, column)}{unit} (n = {len(first.values)}{when})"
    said = [_others(first, rest, column)]
    if left := [group.label for group in alive if not _values(group, column)]:
        said.append(f"Not measured: {listed(left)}.")
    if column.name == "erank/gap" and made_by_filter(first.group.first):
        said.append("Its filter makes the gap, whatever was learned.")
    return Best(question, column, ordered, first.group.label, value, " ".join(said))


def _others(first: Standing, rest: Sequence[Standing], column: Column) -> str:
    if not rest:
        return "There is no other to compare it with."
    tied = [other for other in rest if close(first, other)]
    names = [f"{other.group.label} ({_shown(other, column)})" for other in tied or rest[:1]]
    if tied:
        return f"Within one standard deviation of it: {listed(names)}."
    if close(first, rest[0]) is None:
        return f"One seed each, so the spread is not known; next {names[0]}."
    return f"No other is within one standard deviation of it; next {names[0]}."


def _shown(standing: Standing, column: Column) -> str:
    return spread(standing.values, column.digits)
