"""What the paper says, judged by the runs: reproduced, not reproduced, or undecided.

``study.yaml`` has the claims and the plan by which they are judged, written before the runs.
"""

import operator
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from rdm_solo.evidence.intervals import Difference, difference, holm
from rdm_solo.evidence.table import Runs

REPRODUCED, FAILED, OPEN = "reproduced", "not reproduced", "undecided"
WAITS, BUILT = "waits for runs", "the filter makes it in each batch, so no evidence"
UNTESTED = "undecided, no run here"

EACH_SEED = {"at_least": operator.ge, "at_most": operator.le, "more_than": operator.gt}
PAIRED = {"above": 1, "below": -1, "close_to": 1}  # the sign that the claim expects


class Verdict(NamedTuple):
    """A verdict, the numbers of the claim's rows, and those of its controls."""

    verdict: str
    numbers: str = ""
    controls: str = ""


class Comparison(NamedTuple):
    """A row's paired difference from another row in a column, tested against minus ``margin``."""

    row: str
    other: str
    column: str
    margin: float


class Judge:
    """Judges all claims of a study together, since Holm's correction is over all comparisons."""

    def __init__(
        self, study: Mapping[str, Any], runs: Runs, seeds: Sequence[int], failed: Iterable[str] = ()
    ) -> None:
        """``failed``: rows of which a run failed."""
        self.study, self.runs, self.seeds, self.failed = study, runs, seeds, set(failed)
        self.missing = sum(
            len(set(seeds) - set(runs.get(row, {}))) for row in study["rows"] if row not in failed
        )
        self.comparisons = self._comparisons()
        self.differences: dict[Comparison, Difference] = {}
        if not self.missing:
            self.differences = {each: self._difference(each) for each in self.comparisons}
        self.corrected = holm({key: found.p for key, found in self.differences.items()})

    def verdicts(self) -> list[Verdict]:
        """One verdict for each claim, in their order."""
        return [self.verdict(claim) for claim in self.study["claims"]]

    def verdict(self, claim: Mapping[str, Any]) -> Verdict:
        """The verdict on one claim."""
        if "rows" not in claim:
            return Verdict(UNTESTED)
        if claim.get("by_construction"):
            return self._by_construction(claim)
        if self.missing:
            return Verdict(WAITS)
        return self._each_seed(claim) if rule_of(claim) in EACH_SEED else self._paired(claim)

    def collapsed(self, row: str) -> tuple[int, int] | None:
        """In how many runs of how many the projection collapsed; None where that is not judged."""
        bounds: Mapping[str, float] = self.study["collapsed"]
        seeds = [values for values in self.runs.get(row, {}).values() if set(bounds) <= set(values)]
        if row.startswith("clustering: ") or not seeds:
            return None
        low = [any(values[name] < bound for name, bound in bounds.items()) for values in seeds]
        return sum(low), len(low)

    def mostly_collapsed(self, row: str) -> bool:
        """Whether more than half of the row's runs collapsed."""
        found = self.collapsed(row)
        return bool(found) and 2 * found[0] > found[1]  # type: ignore[index]

    # Rules that every seed must pass.

    def _each_seed(self, claim: Mapping[str, Any]) -> Verdict:
        found: dict[str, list[str]] = {}
        rows = self._rows(claim, "rows")
        for row in rows:
            passing = [c for c in self._controls(claim, row) if any(self._passes(claim, c))]
            if row in self.failed or not all(self._passes(claim, row)):
                verdict = FAILED
            elif passing:
                verdict = f"{OPEN} (passed also by {', '.join(map(self._named, passing))})"
            else:
                verdict = REPRODUCED
            found.setdefault(verdict, []).append(row)
        worst, best = (max, min) if rule_of(claim) == "at_most" else (min, max)
        controls = dict.fromkeys(c for row in rows for c in self._controls(claim, row))
        return Verdict(
            _together(found),
            "; ".join(self._extreme(claim, row, worst) for row in rows),
            "; ".join(self._extreme(claim, row, best) for row in controls),
        )

    def _passes(self, claim: Mapping[str, Any], row: str) -> list[bool]:
        """For each seed, whether it passes the rule in every column."""
        test = rule_of(claim)
        return [
            all(EACH_SEED[test](values[name], claim[test]) for name in claim["columns"])
            for values in self.runs.get(row, {}).values()
        ]

    def _extreme(self, claim: Mapping[str, Any], row: str, of: Any) -> str:
        """The row's smallest or greatest value over seeds, in each column."""
        seeds = list(self.runs.get(row, {}).values())
        if not seeds:
            return f"{row}: every run failed"
        word = "min" if of is min else "max"
        values = (f"{of(each[name] for each in seeds):.2f}" for name in claim["columns"])
        return f"{self._named(row)} {word} {', '.join(values)}"

    # Rules on paired differences.

    def _comparisons(self) -> list[Comparison]:
        """Every comparison of the page, once: of the claims' rows and of their controls."""
        found = [
            self._comparison(claim, row)
            for claim in self.study["claims"]
            if rule_of(claim) in PAIRED
            for row in [*self._rows(claim, "rows"), *self._rows(claim, "controls")]
            if row != claim[rule_of(claim)]
        ]
        return list(dict.fromkeys(found))

    def _comparison(self, claim: Mapping[str, Any], row: str) -> Comparison:
        (column,) = claim["columns"]
        return Comparison(row, claim[rule_of(claim)], column, claim.get("margin", 0))

    def _difference(self, of: Comparison) -> Difference:
        if {of.row, of.other} & self.failed:
            return Difference(float("nan"), float("nan"), float("nan"), 1.0)
        a, b = self.runs[of.row], self.runs[of.other]
        pairs = [a[seed][of.column] - b[seed][of.column] for seed in self.seeds]
        return difference(pairs, -of.margin)

    def _paired(self, claim: Mapping[str, Any]) -> Verdict:
        found: dict[str, list[str]] = {}
        other = claim[rule_of(claim)]
        rows = self._rows(claim, "rows")
        controls = [row for row in self._rows(claim, "controls") if row != other]
        passing = [row for row in controls if self._call(claim, row) == REPRODUCED]
        for row in rows:
            verdict = self._call(claim, row)
            if verdict == REPRODUCED and claim.get("alive") and self.mostly_collapsed(row):
                verdict = f"{FAILED} (passes, but collapsed itself)"
            elif verdict == REPRODUCED and passing:
                verdict = f"{OPEN} (passed also by {', '.join(map(self._named, passing))})"
            found.setdefault(verdict, []).append(row)
        said = _together(found)
        if self.mostly_collapsed(other):
            said += f"; compared with {self._named(other)}"
        return Verdict(
            said,
            "; ".join(self._number(claim, row) for row in rows),
            "; ".join(self._number(claim, row) for row in controls),
        )

    def _call(self, claim: Mapping[str, Any], row: str) -> str:
        comparison = self._comparison(claim, row)
        if self.corrected[comparison] >= self.study["wrong_calls"]:
            return OPEN
        expected = PAIRED[rule_of(claim)]
        beyond = self.differences[comparison].mean + comparison.margin
        return REPRODUCED if beyond * expected > 0 else FAILED

    def _number(self, claim: Mapping[str, Any], row: str) -> str:
        comparison = self._comparison(claim, row)
        if comparison.row in self.failed or comparison.other in self.failed:
            return f"{row}: a run failed"
        mean, low, high, _ = self.differences[comparison]
        p = self.corrected[comparison]
        said = "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
        return f"{self._named(row)} {mean:+.2f} [{low:+.2f}, {high:+.2f}], {said}"

    def _by_construction(self, claim: Mapping[str, Any]) -> Verdict:
        numbers = []
        for row in self._rows(claim, "rows"):
            seeds = self.runs.get(row, {}).values()
            of = (f"{sum(values[name] for values in seeds):.0f}" for name in claim["columns"])
            numbers.append(f"{row}: measured in {' of '.join(of)} epochs")
        return Verdict(BUILT, "; ".join(numbers))

    # Rows.

    def _rows(self, claim: Mapping[str, Any], key: str) -> list[str]:
        patterns = claim.get(key, [])
        return [r for r in self.study["rows"] if any(fnmatchcase(r, each) for each in patterns)]

    def _controls(self, claim: Mapping[str, Any], row: str) -> list[str]:
        """The claim's controls of the row's own family."""
        family = row.partition(":")[0]
        return [c for c in self._rows(claim, "controls") if c.partition(":")[0] == family]

    def _named(self, row: str) -> str:
        """The row's name, and in how many of its runs it collapsed where these are most."""
        found = self.collapsed(row)
        if found and self.mostly_collapsed(row):
            return f"{row} (collapsed in {found[0]} of {found[1]})"
        return row


def rule_of(claim: Mapping[str, Any]) -> str:
    """The name of the claim's test, of which it has at most one."""
    return next((name for name in (*EACH_SEED, *PAIRED) if name in claim), "")


def _together(found: Mapping[str, Sequence[str]]) -> str:
    """One verdict where all rows agree, else which rows say what."""
    if len(found) == 1:
        return next(iter(found))
    return "; ".join(f"{verdict}: {', '.join(rows)}" for verdict, rows in found.items())
