"""Answer the trial's questions from the table, by the rules of ``plan.yaml``."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from studies.intervals import Difference, difference, holm
from studies.mechanism.plan import DATA, PLAN
from studies.table import Row

VARIANTS = ("textures", "angles")  # a verdict needs both
WORKS, FAILS, OPEN = "works", "fails", "undecided"
MATCHED = ("truncation", "rotated", "rotated anew", "noise")
WITHOUT_GAP = {"both": "identity", "both, none stopped": "identity, none stopped"}


class Comparison(NamedTuple):
    """The accuracies of two settings on one data set, paired by seed."""

    data: str
    setting: str
    other: str


class Judged(NamedTuple):
    difference: Difference  # tested against the margin
    word: str


def values(
    rows: Sequence[Row], data: str, setting: str, column: str = "linear"
) -> dict[str, float]:
    """Return a column of a setting's runs by seed."""
    chosen = [row for row in rows if (row["data"], row["setting"]) == (data, setting)]
    return {row["seed"]: float(row[column]) for row in chosen if row[column]}


def judge(rows: Sequence[Row], comparisons: Sequence[Comparison]) -> dict[Comparison, Judged]:
    """Say of each comparison whether the setting works or fails, Holm's correction over all."""
    margin, tests = PLAN["margin"], {}
    for each in comparisons:
        first, other = (values(rows, each.data, name) for name in (each.setting, each.other))
        tests[each] = difference([first[seed] - other[seed] for seed in sorted(first)], margin)
    corrected = holm({each: test.p for each, test in tests.items()})
    return {
        each: Judged(test, _word(test, corrected[each], margin)) for each, test in tests.items()
    }


def _word(test: Difference, p: float, margin: float) -> str:
    if test.mean > margin and p < PLAN["alpha"]:
        return WORKS
    return FAILS if test.high < margin else OPEN


def sufficient(rows: Sequence[Row]) -> tuple[str, dict[Comparison, Judged]]:
    """Answer whether a gap is sufficient; only arms whose gap is large enough decide."""
    arms = ("power", *MATCHED)
    judged = judge(rows, [Comparison(data, arm, "identity") for data in DATA for arm in arms])
    words = {
        arm: [judged[Comparison(data, arm, "identity")].word for data in VARIANTS]
        for arm in arms
        if all(_matched(rows, data, arm) for data in VARIANTS)
    }
    if any(set(both) == {FAILS} for both in words.values()):
        return "a gap does not suffice", judged
    if words and all(set(both) == {WORKS} for both in words.values()):
        return "a gap suffices", judged
    return OPEN, judged


def _matched(rows: Sequence[Row], data: str, arm: str) -> bool:
    """Return whether an arm's mean gap is at least half of the reference's."""
    gap, reference = (
        statistics.fmean(values(rows, data, name, "gap").values()) for name in (arm, "power")
    )
    return gap >= reference / 2


def necessary(rows: Sequence[Row]) -> tuple[str, dict[Comparison, Judged]]:
    """Answer whether a gap is necessary, from the settings whose branches have equal outputs."""
    comparisons = [Comparison(data, *pair) for data in DATA for pair in WITHOUT_GAP.items()]
    judged = judge(rows, comparisons)
    words = [
        {judged[Comparison(data, *pair)].word for data in VARIANTS} for pair in WITHOUT_GAP.items()
    ]
    if {WORKS} in words:
        return "a gap is not necessary", judged
    return ("a gap is necessary" if all(each == {FAILS} for each in words) else OPEN), judged
