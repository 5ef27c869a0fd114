"""Judge the paper's claims by the runs: reproduced, not reproduced, or undecided.

``study.yaml`` has the claims and their rules, which were written before the runs.
"""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import pandas as pd  # type: ignore[import-untyped, unused-ignore]

from studies.evidence.plan import PLAN, ROWS
from studies.intervals import Difference, difference, holm
from studies.study import numbers

REPRODUCED, FAILED, OPEN = "reproduced", "not reproduced", "undecided"
BUILT = "no evidence: the filter causes it in each batch"
UNTESTED = "undecided, no run here"

EACH_SEED = {"at_least": operator.ge, "at_most": operator.le, "more_than": operator.gt}
PAIRED = {"above": 1, "below": -1, "close_to": 1}  # the sign that the claim expects

Claim = Mapping[str, Any]


class Verdict(NamedTuple):
    """A verdict, a shorter one for the page, and the numbers of the claim's rows and controls."""

    text: str
    short: str
    numbers: Sequence[str] = ()
    controls: Sequence[str] = ()


class Comparison(NamedTuple):
    """A row minus another row in one column, seed by seed, tested against minus ``margin``."""

    row: str
    other: str
    column: str
    margin: float


class Judge:
    """Judges all claims of a study together, because Holm's correction needs all comparisons.

    The values of a run that failed are NaN: it passes no bound, and its comparisons are undecided.
    """

    def __init__(self, table: pd.DataFrame) -> None:
        measured = numbers(table.loc[:, "knn third":"monotonicity directional"])
        measured.index = table["seed"]
        self.runs = dict(list(measured.groupby(table["row"].to_numpy())))
        self.tests: dict[Comparison, Difference] = {}
        for claim in PLAN["claims"]:
            if rule_of(claim) in PAIRED:
                for row in rows_like(claim["rows"] + claim["controls"]):
                    key = comparison(claim, row)
                    pairs = self.runs[row][key.column] - self.runs[key.other][key.column]
                    self.tests[key] = difference(pairs.to_numpy(), -key.margin)
        p = pd.Series([test.p for test in self.tests.values()])
        self.corrected = dict(zip(self.tests, holm(p)))

    def verdict(self, claim: Claim) -> Verdict:
        """Return the verdict on one claim."""
        if "rows" not in claim:
            return Verdict(UNTESTED, UNTESTED)
        rows = rows_like(claim["rows"])
        if claim.get("by_construction"):
            return Verdict(BUILT, BUILT, [self._measured_epochs(claim, row) for row in rows])
        controls = rows_like(claim["controls"])
        passing = [row for row in controls if self._outcome(claim, row, any) == REPRODUCED]
        texts, shorts = {}, {}
        for row in rows:
            text = short = self._outcome(claim, row, all)
            same_family = [self.named(c) for c in passing if family(c) == family(row)]
            if text == REPRODUCED and claim.get("alive") and self.mostly_collapsed(row):
                text = f"{FAILED} (passes, but its outputs collapsed)"
                short = f"{FAILED}: their outputs collapsed"
            elif text == REPRODUCED and same_family:
                text = f"{OPEN} (passed also by {', '.join(same_family)})"
                short = f"{OPEN}, as controls pass too"
            texts[row] = text
            shorts[row.removeprefix("clustering: ").replace(": ", " ")] = short
        text = grouped(texts, "{}: {}")
        other = claim[rule_of(claim)]
        if rule_of(claim) in PAIRED and self.mostly_collapsed(other):
            text += f"; compared with {self.named(other)}"
        return Verdict(
            text,
            grouped(shorts, "{} ({})"),
            [self._number(claim, row, worst=True) for row in rows],
            [self._number(claim, row, worst=False) for row in controls],
        )

    def collapsed(self, row: str) -> tuple[int, int]:
        """Return how many of a row's runs have collapsed outputs, and how many can be judged."""
        bounds = pd.Series(PLAN["collapsed"])
        measured = self.runs[row][bounds.index].dropna()
        if family(row) == "clustering":
            return 0, 0
        return int((measured < bounds).any(axis=1).sum()), len(measured)

    def mostly_collapsed(self, row: str) -> bool:
        """Return whether the outputs of more than half of the row's runs collapsed."""
        count, total = self.collapsed(row)
        return 2 * count > total

    def named(self, row: str) -> str:
        """Return the row's name, with the number of runs whose outputs collapsed if it is most."""
        if not self.mostly_collapsed(row):
            return row
        count, total = self.collapsed(row)
        return f"{row} (outputs collapsed in {count} of {total})"

    def _outcome(self, claim: Claim, row: str, enough: Callable[[Iterable[bool]], bool]) -> str:
        """Judge a row by the claim's rule. ``enough`` says how many seeds must pass a bound."""
        rule = rule_of(claim)
        if rule in EACH_SEED:
            passed = EACH_SEED[rule](self.runs[row][claim["columns"]], claim[rule])
            return REPRODUCED if enough(passed.all(axis=1)) else FAILED
        key = comparison(claim, row)
        if self.corrected[key] >= PLAN["wrong_calls"]:
            return OPEN
        beyond = self.tests[key].mean + key.margin
        return REPRODUCED if beyond * PAIRED[rule] > 0 else FAILED

    def _number(self, claim: Claim, row: str, worst: bool) -> str:
        """Return the number that decides about a row: an extreme seed, or a test."""
        rule = rule_of(claim)
        if rule in EACH_SEED:
            extreme = "max" if worst == (rule == "at_most") else "min"
            values = self.runs[row][claim["columns"]].agg(extreme)
            return f"{self.named(row)} {extreme} {', '.join(values.map('{:.2f}'.format))}"
        key = comparison(claim, row)
        test, p = self.tests[key], self.corrected[key]
        significance = f"p = {p:.3f}" if p >= 0.001 else "p < 0.001"
        numbers = f"{test.mean:+.2f} [{test.low:+.2f}, {test.high:+.2f}]"
        return f"{self.named(row)} {numbers}, {significance}"

    def _measured_epochs(self, claim: Claim, row: str) -> str:
        measured, total = self.runs[row][claim["columns"]].sum()
        return f"{row}: measured in {measured:.0f} of {total:.0f} epochs"


def rule_of(claim: Claim) -> str:
    """Return the name of the claim's rule; empty if the claim has none."""
    for rule in (*EACH_SEED, *PAIRED):
        if rule in claim:
            return rule
    return ""


def rows_like(patterns: Sequence[str]) -> list[str]:
    """Return the plan's rows that match one of the patterns."""
    return [row for row in ROWS if any(fnmatchcase(row, pattern) for pattern in patterns)]


def family(row: str) -> str:
    return row.partition(":")[0]


def comparison(claim: Claim, row: str) -> Comparison:
    """Return the comparison of a row that the claim's rule is about."""
    (column,) = claim["columns"]
    return Comparison(row, claim[rule_of(claim)], column, claim.get("margin", 0))


def grouped(verdicts: Mapping[str, str], form: str) -> str:
    """Return the verdict if all rows have the same, else each verdict with its rows."""
    rows: dict[str, list[str]] = {}
    for row, verdict in verdicts.items():
        rows.setdefault(verdict, []).append(row)
    if len(rows) == 1:
        return next(iter(rows))
    return "; ".join(form.format(verdict, ", ".join(names)) for verdict, names in rows.items())
