"""Judge the paper's claims by the runs: reproduced, not reproduced, or undecided.

``study.yaml`` has the claims and their rules, which were written before the runs.
"""

import operator
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from studies.evidence.plan import MEASURED, OK
from studies.intervals import Difference, difference, holm
from studies.table import Row

REPRODUCED, FAILED, OPEN = "reproduced", "not reproduced", "undecided"
WAITS, BUILT = "waits for runs", "no evidence: the filter causes it in each batch"
UNTESTED = "undecided, no run here"

EACH_SEED = {"at_least": operator.ge, "at_most": operator.le, "more_than": operator.gt}
PAIRED = {"above": 1, "below": -1, "close_to": 1}  # the sign that the claim expects

# Row -> seed -> column -> value, without failed runs.
Runs = Mapping[str, Mapping[int, Mapping[str, float]]]


def runs_of(rows: Iterable[Row]) -> Runs:
    """Return the runs of a table that did not fail."""
    runs: dict[str, dict[int, dict[str, float]]] = {}
    for row in rows:
        if row["status"] == OK:
            values = {name: float(row[name]) for name in MEASURED if row.get(name)}
            runs.setdefault(row["row"], {})[int(row["seed"])] = values
    return runs


class Verdict(NamedTuple):
    """A verdict, the numbers of the claim's rows, those of its controls, and a short verdict."""

    verdict: str
    numbers: str = ""
    controls: str = ""
    short: str = ""


class Comparison(NamedTuple):
    """A row minus another row in one column, seed by seed, tested against minus ``margin``."""

    row: str
    other: str
    column: str
    margin: float


class Judge:
    """Judges all claims of a study together, because Holm's correction needs all comparisons."""

    def __init__(
        self, study: Mapping[str, Any], runs: Runs, seeds: Sequence[int], failed: Iterable[str] = ()
    ) -> None:
        """``failed`` names the rows with a failed run."""
        self.study, self.runs, self.seeds, self.failed = study, runs, seeds, set(failed)
        self.missing = sum(
            len(set(seeds) - set(runs.get(row, {})))
            for row in study["rows"]
            if row not in self.failed
        )
        self.comparisons = self._comparisons()
        self.differences: dict[Comparison, Difference] = {}
        if not self.missing:
            self.differences = {each: self._difference(each) for each in self.comparisons}
        self.corrected = holm({key: test.p for key, test in self.differences.items()})

    def verdict(self, claim: Mapping[str, Any]) -> Verdict:
        """Return the verdict on one claim."""
        if "rows" not in claim:
            return Verdict(UNTESTED, short=UNTESTED)
        if claim.get("by_construction"):
            return self._by_construction(claim)
        if self.missing:
            return Verdict(WAITS)
        return self._each_seed(claim) if rule_of(claim) in EACH_SEED else self._paired(claim)

    def collapsed(self, row: str) -> tuple[int, int] | None:
        """Return how many of a row's runs have collapsed outputs, and of how many; or None."""
        bounds: Mapping[str, float] = self.study["collapsed"]
        seeds = [values for values in self.runs.get(row, {}).values() if set(bounds) <= set(values)]
        if row.startswith("clustering: ") or not seeds:
            return None
        low = [any(values[name] < bound for name, bound in bounds.items()) for values in seeds]
        return sum(low), len(low)

    def mostly_collapsed(self, row: str) -> bool:
        """Return whether the outputs of more than half of the row's runs collapsed."""
        count, total = self.collapsed(row) or (0, 0)
        return 2 * count > total

    # Rules that every seed must pass.

    def _each_seed(self, claim: Mapping[str, Any]) -> Verdict:
        verdicts: dict[str, list[str]] = {}
        rows = self._rows(claim, "rows")
        for row in rows:
            passing = [c for c in self._controls(claim, row) if any(self._passes(claim, c))]
            if row in self.failed or not all(self._passes(claim, row)):
                verdict = FAILED
            else:
                verdict = self._unless_passed_by(passing)
            verdicts.setdefault(verdict, []).append(row)
        worst, best = (max, min) if rule_of(claim) == "at_most" else (min, max)
        controls = dict.fromkeys(c for row in rows for c in self._controls(claim, row))
        return Verdict(
            _joined(verdicts),
            "; ".join(self._extreme(claim, row, worst) for row in rows),
            "; ".join(self._extreme(claim, row, best) for row in controls),
            _short(verdicts),
        )

    def _passes(self, claim: Mapping[str, Any], row: str) -> list[bool]:
        """Return for each seed whether it passes the rule in every column."""
        rule = rule_of(claim)
        return [
            all(EACH_SEED[rule](values[name], claim[rule]) for name in claim["columns"])
            for values in self.runs.get(row, {}).values()
        ]

    def _extreme(self, claim: Mapping[str, Any], row: str, extreme: Any) -> str:
        """Return the row's smallest or greatest value over seeds in each column."""
        seeds = list(self.runs.get(row, {}).values())
        if not seeds:
            return f"{row}: every run failed"
        values = (f"{extreme(each[name] for each in seeds):.2f}" for name in claim["columns"])
        return f"{self._named(row)} {extreme.__name__} {', '.join(values)}"

    # Rules on paired differences.

    def _comparisons(self) -> list[Comparison]:
        """Return every comparison of the page once, of the claims' rows and of their controls."""
        comparisons = [
            self._comparison(claim, row)
            for claim in self.study["claims"]
            if rule_of(claim) in PAIRED
            for row in [*self._rows(claim, "rows"), *self._rows(claim, "controls")]
            if row != claim[rule_of(claim)]
        ]
        return list(dict.fromkeys(comparisons))

    def _comparison(self, claim: Mapping[str, Any], row: str) -> Comparison:
        (column,) = claim["columns"]
        return Comparison(row, claim[rule_of(claim)], column, claim.get("margin", 0))

    def _difference(self, comparison: Comparison) -> Difference:
        if {comparison.row, comparison.other} & self.failed:
            return Difference(float("nan"), float("nan"), float("nan"), 1.0)
        a, b = self.runs[comparison.row], self.runs[comparison.other]
        column = comparison.column
        return difference([a[s][column] - b[s][column] for s in self.seeds], -comparison.margin)

    def _paired(self, claim: Mapping[str, Any]) -> Verdict:
        verdicts: dict[str, list[str]] = {}
        other = claim[rule_of(claim)]
        rows = self._rows(claim, "rows")
        controls = [row for row in self._rows(claim, "controls") if row != other]
        passing = [row for row in controls if self._call(claim, row) == REPRODUCED]
        for row in rows:
            verdict = self._call(claim, row)
            if verdict == REPRODUCED:
                if claim.get("alive") and self.mostly_collapsed(row):
                    verdict = f"{FAILED} (passes, but its outputs collapsed)"
                else:
                    verdict = self._unless_passed_by(passing)
            verdicts.setdefault(verdict, []).append(row)
        text = _joined(verdicts)
        if self.mostly_collapsed(other):
            text += f"; compared with {self._named(other)}"
        return Verdict(
            text,
            "; ".join(self._number(claim, row) for row in rows),
            "; ".join(self._number(claim, row) for row in controls),
            _short(verdicts),
        )

    def _call(self, claim: Mapping[str, Any], row: str) -> str:
        comparison = self._comparison(claim, row)
        if self.corrected[comparison] >= self.study["wrong_calls"]:
            return OPEN
        beyond = self.differences[comparison].mean + comparison.margin
        return REPRODUCED if beyond * PAIRED[rule_of(claim)] > 0 else FAILED

    def _number(self, claim: Mapping[str, Any], row: str) -> str:
        comparison = self._comparison(claim, row)
        if {comparison.row, comparison.other} & self.failed:
            return f"{row}: a run failed"
        mean, low, high, *_ = self.differences[comparison]
        p = self.corrected[comparison]
        significance = "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
        return f"{self._named(row)} {mean:+.2f} [{low:+.2f}, {high:+.2f}], {significance}"

    def _by_construction(self, claim: Mapping[str, Any]) -> Verdict:
        numbers = []
        for row in self._rows(claim, "rows"):
            seeds = self.runs.get(row, {}).values()
            sums = (f"{sum(values[name] for values in seeds):.0f}" for name in claim["columns"])
            numbers.append(f"{row}: measured in {' of '.join(sums)} epochs")
        return Verdict(BUILT, "; ".join(numbers), short=BUILT)

    # Rows.

    def _rows(self, claim: Mapping[str, Any], key: str) -> list[str]:
        patterns = claim.get(key, [])
        return [r for r in self.study["rows"] if any(fnmatchcase(r, each) for each in patterns)]

    def _controls(self, claim: Mapping[str, Any], row: str) -> list[str]:
        """Return the claim's controls of the row's own family."""
        family = row.partition(":")[0]
        return [c for c in self._rows(claim, "controls") if c.partition(":")[0] == family]

    def _unless_passed_by(self, controls: Sequence[str]) -> str:
        """Return the verdict on a row that passes the rule; ``controls`` also pass it."""
        if not controls:
            return REPRODUCED
        return f"{OPEN} (passed also by {', '.join(map(self._named, controls))})"

    def _named(self, row: str) -> str:
        """Return the row's name, with the number of runs whose outputs collapsed if it is most."""
        if not self.mostly_collapsed(row):
            return row
        return "{} (outputs collapsed in {} of {})".format(row, *self.collapsed(row) or ())


def rule_of(claim: Mapping[str, Any]) -> str:
    """Return the name of the claim's rule; empty if the claim has none."""
    return next((name for name in (*EACH_SEED, *PAIRED) if name in claim), "")


def _joined(verdicts: Mapping[str, Sequence[str]]) -> str:
    """Return the verdict if all rows have the same, else each verdict with its rows."""
    if len(verdicts) == 1:
        return next(iter(verdicts))
    return "; ".join(f"{verdict}: {', '.join(rows)}" for verdict, rows in verdicts.items())


def _short(verdicts: Mapping[str, Sequence[str]]) -> str:
    """Return the verdicts without the names of the controls that pass."""
    short: dict[str, list[str]] = {}
    for verdict, rows in verdicts.items():
        reason = ": their outputs collapsed" if "its outputs collapsed)" in verdict else ""
        reason = ", as controls pass too" if " (passed" in verdict else reason
        names = [row.removeprefix("clustering: ").replace(": ", " ") for row in rows]
        short.setdefault(verdict.partition(" (")[0] + reason, []).extend(names)
    if len(short) == 1:
        return next(iter(short))
    return "; ".join(f"{verdict} ({', '.join(names)})" for verdict, names in short.items())
