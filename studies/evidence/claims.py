"""Judge the paper's claims by the runs: reproduced, not reproduced, or undecided.

``study.yaml`` has the claims and their rules, which were written before the runs.
"""

import operator
from collections import defaultdict
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import pandas as pd

from studies.evidence.plan import PLAN, ROWS
from studies.intervals import difference, holm
from studies.study import numbers

REPRODUCED, FAILED, OPEN = "reproduced", "not reproduced", "undecided"
BUILT = "no evidence: the filter causes it in each batch"
UNTESTED = "undecided, no run here"

BOUNDS = {"at_least": operator.ge, "at_most": operator.le, "more_than": operator.gt}
PAIRED = {"above": 1, "below": -1, "close_to": 1}  # the sign that the claim expects

Claim = Mapping[str, Any]


class Verdict(NamedTuple):
    """A verdict, a shorter one for the page, and the numbers of the claim's rows and controls."""

    text: str
    short: str
    numbers: Sequence[str] = ()
    controls: Sequence[str] = ()


class Judge:
    """Judges all claims of a study together, because Holm's correction needs all comparisons.

    The values of a run that failed are NaN: it passes no bound, and its comparisons are undecided.
    """

    def __init__(self, table: pd.DataFrame) -> None:
        measured = numbers(table.loc[:, "knn third":"monotonicity directional"])
        measured.index = table["seed"]
        self.runs = dict(list(measured.groupby(table["row"].to_numpy())))
        tests = {}
        for claim in PLAN["claims"]:
            rule = rule_of(claim)
            if rule in PAIRED:
                (column,) = claim["columns"]
                other = self.runs[claim[rule]][column]
                for row in rows_like(claim["rows"] + claim["controls"]):
                    pairs = self.runs[row][column] - other
                    test = difference(pairs, -claim.get("margin", 0))
                    tests[row, claim[rule], column] = test
        self.tests = pd.DataFrame(tests).T
        self.tests["p"] = holm(self.tests["p"])

    def verdict(self, claim: Claim) -> Verdict:
        """Return the verdict on one claim."""
        rule = rule_of(claim)
        rows = rows_like(claim.get("rows", []))
        if not rows:
            return Verdict(UNTESTED, UNTESTED)
        if not rule:
            epochs = []
            for row in rows:
                measured, total = self.runs[row][claim["columns"]].sum()
                epochs.append(f"{row}: measured in {measured:.0f} of {total:.0f} epochs")
            return Verdict(BUILT, BUILT, epochs)
        controls = []
        passing = defaultdict(list)  # controls by their family
        for row in rows_like(claim["controls"]):
            outcome, number = self.judge_row(claim, row, is_control=True)
            controls.append(number)
            if outcome == REPRODUCED:
                passing[family(row)].append(self.named(row))
        numbers = []
        texts = defaultdict(list)  # rows by their verdict
        shorts = defaultdict(list)
        for row in rows:
            outcome, number = self.judge_row(claim, row, is_control=False)
            numbers.append(number)
            text = short = outcome
            if outcome == REPRODUCED and "alive" in claim and self.mostly_collapsed(row):
                text = f"{FAILED} (passes, but its outputs collapsed)"
                short = f"{FAILED}: their outputs collapsed"
            elif outcome == REPRODUCED and passing[family(row)]:
                text = f"{OPEN} (passed also by {', '.join(passing[family(row)])})"
                short = f"{OPEN}, as controls pass too"
            texts[text].append(row)
            shorts[short].append(row.removeprefix("clustering: ").replace(": ", " "))
        text = grouped(texts, "{}: {}")
        if rule in PAIRED and self.mostly_collapsed(claim[rule]):
            text += f"; compared with {self.named(claim[rule])}"
        return Verdict(text, grouped(shorts, "{} ({})"), numbers, controls)

    def judge_row(self, claim: Claim, row: str, is_control: bool) -> tuple[str, str]:
        """Return a row's outcome by the claim's rule, and the numbers that decide about it."""
        rule = rule_of(claim)
        outcome = FAILED
        if rule in PAIRED:
            (column,) = claim["columns"]
            test = self.tests.loc[row, claim[rule], column]
            p = "p < 0.001"
            if test.p >= 0.001:
                p = f"p = {test.p:.3f}"
            numbers = f"{test['mean']:+.2f} [{test.low:+.2f}, {test.high:+.2f}], {p}"
            if test.p >= PLAN["wrong_calls"]:
                outcome = OPEN
            elif (test["mean"] - test.zero) * PAIRED[rule] > 0:
                outcome = REPRODUCED
        else:
            values = self.runs[row][claim["columns"]]
            by_seed = BOUNDS[rule](values, claim[rule]).all(axis=1)
            # Every seed of a row must pass, and no seed of a control. The numbers are the row's
            # worst values and the control's best ones.
            extreme = "max" if is_control != (rule == "at_most") else "min"
            texts = values.agg(extreme).map("{:.2f}".format)
            numbers = f"{extreme} {', '.join(texts)}"
            if by_seed.all() or (is_control and by_seed.any()):
                outcome = REPRODUCED
        return outcome, f"{self.named(row)} {numbers}"

    def collapsed(self, row: str) -> tuple[int, int]:
        """Return how many of a row's runs have collapsed outputs, and how many can be judged."""
        if family(row) == "clustering":
            return 0, 0
        bounds = pd.Series(PLAN["collapsed"])
        measured = self.runs[row][bounds.index].dropna()
        is_low = (measured < bounds).any(axis=1)
        return is_low.sum(), len(is_low)

    def mostly_collapsed(self, row: str) -> bool:
        """Return whether the outputs of more than half of the row's runs collapsed."""
        count, total = self.collapsed(row)
        return 2 * count > total

    def named(self, row: str) -> str:
        """Return the row's name, with the number of runs whose outputs collapsed if it is most."""
        if not self.mostly_collapsed(row):
            return row
        return "{} (outputs collapsed in {} of {})".format(row, *self.collapsed(row))


def rule_of(claim: Claim) -> str:
    """Return the name of the claim's rule; empty if the claim has none."""
    for rule in (*BOUNDS, *PAIRED):
        if rule in claim:
            return rule
    return ""


def rows_like(patterns: Sequence[str]) -> list[str]:
    """Return the plan's rows that match one of the patterns."""
    return [row for row in ROWS if any(fnmatchcase(row, pattern) for pattern in patterns)]


def family(row: str) -> str:
    return row.partition(":")[0]


def grouped(rows: Mapping[str, Sequence[str]], form: str) -> str:
    """Return the verdict if all rows have the same, else each verdict with its rows."""
    if len(rows) == 1:
        (verdict,) = rows
        return verdict
    return "; ".join(form.format(verdict, ", ".join(names)) for verdict, names in rows.items())
