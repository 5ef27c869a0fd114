"""Answer the trial's questions from the table, by the rules of ``plan.yaml``."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from studies.intervals import Difference, difference, holm
from studies.mechanism.plan import DATA, PLAN, TUNING, Cell, cells
from studies.mechanism.runs import cell_of
from studies.table import Row

VARIANTS = ("textures", "angles")  # a verdict needs both
WORKS, FAILS, OPEN = "works", "fails", "undecided"
MATCHED = ("truncation", "rotated", "rotated anew", "noise")
WITHOUT_GAP = {"both": "identity", "both, none stopped": "identity, none stopped"}
ALPHAS = ("0.25", "0.5", "1")
BATCHES, MOMENTA = (16, 64, 256), ("0.5", "0.998")
METHODS, FILTERS = ("SimSiam", "BYOL"), ("learnable", "-0.3", "-0.5", "-1")


class Comparison(NamedTuple):
    """A column of two cells, and the value that their difference by seed is tested against."""

    cell: Cell
    other: Cell
    column: str = "linear"
    against: float = 0.0


class Judged(NamedTuple):
    """A test and its p after Holm's correction."""

    test: Difference
    p: float

    @property
    def sign(self) -> int:
        """1 or -1 if the mean is significantly above or below the tested value, else 0."""
        if self.p >= PLAN["alpha"]:
            return 0
        return 1 if self.test.mean > self.test.zero else -1

    @property
    def word(self) -> str:
        """Return works, fails or undecided, for a test against a margin."""
        if self.sign > 0:
            return WORKS
        return FAILS if self.test.high < self.test.zero else OPEN


Results = dict[Any, Judged]


def compare(
    setting: str, other: str, data: str, column: str = "linear", against: float = 0.0
) -> Comparison:
    """Return the comparison of two settings of 30 epochs."""
    return Comparison(Cell(setting, data), Cell(other, data), column, against)


def values(rows: Sequence[Row], cell: Cell, column: str = "linear") -> dict[int, float]:
    """Return a column of a cell's runs by seed, without the runs that chose its learning rate."""
    found = {int(row["seed"]): row[column] for row in rows if cell_of(row) == cell}
    return {seed: float(value) for seed, value in found.items() if value and seed not in TUNING}


def pairs(rows: Sequence[Row], each: Comparison) -> dict[int, float]:
    """Return the difference of each seed that has both values."""
    first, other = (values(rows, cell, each.column) for cell in (each.cell, each.other))
    return {seed: first[seed] - other[seed] for seed in first if seed in other}


def test(rows: Sequence[Row], each: Comparison) -> Difference:
    """Test a comparison against its value."""
    return difference([*pairs(rows, each).values()], each.against)


def judge(rows: Sequence[Row], comparisons: Iterable[Comparison]) -> Results:
    """Test each comparison that has runs (the second stage has no digits), corrected after Holm."""
    return _corrected({each: test(rows, each) for each in comparisons if pairs(rows, each)})


def _corrected(tests: Mapping[Any, Difference]) -> Results:
    p = holm({each: test.p for each, test in tests.items()})
    return {each: Judged(test, p[each]) for each, test in tests.items()}


def sufficient(rows: Sequence[Row]) -> tuple[str, Results]:
    """Answer whether a gap is sufficient; only arms whose gap is large enough decide."""
    arms, margin = ("power", *MATCHED), PLAN["margin"]
    tests = [compare(arm, "identity", data, against=margin) for data in DATA for arm in arms]
    judged = judge(rows, tests)
    words = {
        _word(judged, arm, "identity", "linear", margin)
        for arm in MATCHED
        if all(is_matched(rows, data, arm) for data in VARIANTS)
    }
    if FAILS in words:
        return "a gap does not suffice", judged
    return ("a gap suffices" if words == {WORKS} else OPEN), judged


def is_matched(rows: Sequence[Row], data: str, arm: str) -> bool:
    """Return whether an arm's mean gap is at least half of the reference's."""
    gap, reference = (
        statistics.fmean(values(rows, Cell(name, data), "gap").values()) for name in (arm, "power")
    )
    return gap >= reference / 2


def necessary(rows: Sequence[Row]) -> tuple[dict[str, str], Results]:
    """Answer whether a gap is necessary, by the accuracy and by the rank.

    The settings without a gap are those whose branches have equal outputs.
    """
    margins = {"linear": PLAN["margin"], "erank": PLAN["margin_rank"]}
    judged = judge(
        rows,
        [
            compare(*pair, data, column, margin)
            for column, margin in margins.items()
            for data in DATA
            for pair in WITHOUT_GAP.items()
        ],
    )
    answers = {}
    for column, margin in margins.items():
        words = {_word(judged, *pair, column, margin) for pair in WITHOUT_GAP.items()}
        works = "a gap is not necessary" if WORKS in words else OPEN
        answers[column] = "a gap is necessary" if words == {FAILS} else works
    return answers, judged


def _word(judged: Results, name: str, other: str, column: str, margin: float) -> str:
    """Return works or fails if both variants agree, else undecided."""
    words = {judged[compare(name, other, data, column, margin)].word for data in VARIANTS}
    return words.pop() if len(words) == 1 else OPEN


def rate(rows: Sequence[Row]) -> tuple[str, Results]:
    """Answer whether the rates differ between the losses, and whether that changes the rank."""
    judged = judge(
        rows,
        [
            compare(f"mse {alpha}", f"iso {alpha}", data, column)
            for column in ("slope", "erank")
            for data in DATA
            for alpha in ALPHAS
        ],
    )
    slopes, ranks = (
        [_agreed(judged, f"mse {alpha}", f"iso {alpha}", column) for alpha in ALPHAS]
        for column in ("slope", "erank")
    )
    found = []
    if slopes == [1, 1, 1]:
        found.append("the loss changes the rates")
    if max(ranks.count(1), ranks.count(-1)) >= 2:
        found.append("rate matters beyond the gap")
    return " and ".join(found) or "no difference beyond the gap was found", judged


def _agreed(judged: Results, name: str, other: str, column: str = "linear") -> int:
    """Return the sign of a difference on both variants; 0 if they do not agree."""
    signs = {judged[compare(name, other, data, column)].sign for data in VARIANTS}
    return signs.pop() if len(signs) == 1 else 0


def spectrum(rows: Sequence[Row]) -> tuple[str, Results]:
    """Answer at which batch sizes a running spectrum is better or worse than the batch's."""
    names = {
        (batch, momentum): (f"batch {batch}, momentum {momentum}", f"batch {batch}, momentum 0")
        for batch in BATCHES
        for momentum in MOMENTA
    }
    judged = judge(rows, [compare(*pair, data) for data in DATA for pair in names.values()])
    signs = {key: _agreed(judged, *pair) for key, pair in names.items()}
    found = [
        f"batch {batch}: momentum {momentum} is {'better' if sign > 0 else 'worse'}"
        for (batch, momentum), sign in signs.items()
        if sign
    ]
    return "; ".join(found) or "no difference was found", judged


def schedule(rows: Sequence[Row]) -> tuple[dict[Any, str], Results]:
    """Answer how target σ^-0.5 compares with the learned predictor.

    A key of the answers is a cell, or a method for the change with the length of the schedule.
    """
    fixed = [cell for cell in cells("schedule") if cell.setting.endswith(" -0.5")]
    tests: dict[Any, Difference] = {
        each: test(rows, each)
        for cell in fixed
        for each in (advantage(cell), advantage(cell, -PLAN["margin"]))
    }
    judged = _corrected(tests | {name: difference(slopes(rows, name)) for name in METHODS})
    answers: dict[Any, str] = {}
    for cell in fixed:
        above, close = judged[advantage(cell)].sign, judged[advantage(cell, -PLAN["margin"])].sign
        below = "inferior" if above < 0 else OPEN
        answers[cell] = "superior" if above > 0 else "not inferior" if close > 0 else below
    for name in METHODS:
        change = {1: "its advantage grows", 0: "no change was shown", -1: "its advantage shrinks"}
        answers[name] = change[judged[name].sign]
    return answers, judged


def advantage(cell: Cell, against: float = 0.0) -> Comparison:
    """Return the comparison with the learned predictor of the same method."""
    other = cell._replace(setting=f"{cell.setting.split()[0]} learnable")
    return Comparison(cell, other, against=against)


def slopes(rows: Sequence[Row], method: str) -> list[float]:
    """Return for each seed the slope of the advantage of σ^-0.5 over log(epochs) on the digits."""
    lengths = PLAN["epochs"]["schedule"]["digits"]
    fixed = [Cell(f"{method} -0.5", "digits", length) for length in lengths]
    by_length = [pairs(rows, advantage(cell)) for cell in fixed]
    x = [math.log(length) for length in lengths]
    return [
        statistics.linear_regression(x, [each[seed] for each in by_length]).slope
        for seed in set.intersection(*map(set, by_length))
    ]


def recommended(rows: Sequence[Row]) -> tuple[dict[str, tuple[bool, list[str]]], Results]:
    """Return for each method True and the filter that beats all others on both variants.

    If there is none, return False and the filters within the margin of the best mean on both.
    """
    judged = judge(
        rows,
        [
            compare(f"{method} {first}", f"{method} {other}", data)
            for method in METHODS
            for data in VARIANTS
            for first, other in combinations(FILTERS, 2)
        ],
    )
    answers = {}
    for method in METHODS:
        wins = dict.fromkeys(FILTERS, 0)
        for first, other in combinations(FILTERS, 2):
            sign = _agreed(judged, f"{method} {first}", f"{method} {other}")
            if sign:
                wins[first if sign > 0 else other] += 1
        best = [name for name in FILTERS if wins[name] == len(FILTERS) - 1]
        answers[method] = (True, best) if best else (False, _close(rows, method))
    return answers, judged


def _close(rows: Sequence[Row], method: str) -> list[str]:
    """Return the filters whose mean is within the margin of the best on both variants."""
    close = list(FILTERS)
    for data in VARIANTS:
        means = {
            name: statistics.fmean(values(rows, Cell(f"{method} {name}", data)).values())
            for name in FILTERS
        }
        close = [name for name in close if means[name] >= max(means.values()) - PLAN["margin"]]
    return close
