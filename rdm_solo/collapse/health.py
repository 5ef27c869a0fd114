"""Judge a single run by the collapse rules: is it alive?"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from rdm_solo.collapse import rules
from rdm_solo.collapse.rules import (
    COMPLETE,
    DIMENSIONAL,
    FEW_FEATURES,
    IN_A_ROW,
    Bounds,
    MeasuredEpoch,
    Rule,
)

UNMEASURED = "not measured"
TOO_EARLY = "too early to say"
COLLAPSED = (COMPLETE, DIMENSIONAL, FEW_FEATURES)
MOSTLY_MEAN = 0.2  # below this spread, outputs are mostly a constant


class Outcome(NamedTuple):
    """The answer to a question about one run, and whether the answer is good (None: not scored)."""

    answer: str
    good: bool | None = None
    suspect: bool = False  # a note applies, which healthy runs can have too
    collapsed: bool = False  # the outputs or the features
    number: str = ""  # the value that is below its bound
    kind: str = ""  # the rule that `number` belongs to; it may not hold yet

    @property
    def healthy(self) -> bool:
        return self.good is not False and not self.suspect

    @property
    def level(self) -> str:
        good = self.good
        if self.collapsed:
            good = False
        return level(good, self.suspect)


def level(good: bool | None, suspect: bool) -> str:
    """Return the CSS class that sets the colour: good, bad, suspect, or an empty string."""
    if good is None:
        return "suspect" if suspect else ""
    return "good" if good else "bad"


def health(epochs: Sequence[MeasuredEpoch], bounds: Bounds, diverged: int | None = None) -> Outcome:
    """Return whether a run is alive after these epochs; ``diverged`` is the epoch of a NaN.

    Gaps are not judged: a negative gap is no collapse.

    >>> epochs = [MeasuredEpoch(e, 0.9, erank, 32, 0.3) for e, erank in ((4, 3.0), (5, 2.5))]
    >>> health(epochs, Bounds()).answer
    'alive: no rule of collapse met in 2 judged epochs'
    >>> epochs.append(MeasuredEpoch(6, 0.9, 1.9, 32, 0.3))
    >>> health(epochs, Bounds()).answer
    'too early to say: the last epoch is below a bound (dimensional collapse)'
    >>> health(epochs, Bounds()).number
    'effective rank around the mean 1.9 of 32, below 2.2'
    """
    if diverged is not None:
        return Outcome(f"diverged in epoch {diverged}", good=False)

    met = rules.kinds_of_collapse(epochs, bounds)
    if met:
        rule = _most_important(met)
        number = rule.number_in(epochs, bounds)
        if not rule.note:
            return Outcome(rule.answer, good=False, number=number, kind=rule.kind)
        is_collapse = rule.kind in COLLAPSED
        return Outcome(rule.answer, None, True, is_collapse, number, rule.kind)

    measured = [epoch for epoch in epochs if epoch.epoch and math.isfinite(epoch.spread)]
    if not measured:
        return Outcome(UNMEASURED)
    # A rule needs several low values in a row after the warm-up, and here the last one is low.
    low = [rule.kind for rule in rules.RULES if rule.last_is_low(epochs, bounds)]
    if low:
        rule = _most_important(low)
        answer = f"{TOO_EARLY}: the last epoch is below a bound ({rule.kind})"
        number = rule.number_in(epochs, bounds)
        return Outcome(answer, suspect=True, number=number, kind=rule.kind)
    if len(measured) < IN_A_ROW or measured[-IN_A_ROW].epoch <= bounds.warmup:
        return Outcome(TOO_EARLY)
    if not measured[-1].dimensions or not math.isfinite(measured[-1].erank):
        return Outcome("no complete collapse; the rank was not measured")
    spread = measured[-1].spread
    if spread < MOSTLY_MEAN:
        mean = f"{100 * (1 - spread):.0f} % of the outputs' second moment is their mean"
        return Outcome(f"undecided: {mean}")
    return Outcome(f"alive: {_judged_epochs(epochs, bounds)}", good=True)


def _most_important(kinds: Sequence[str]) -> Rule:
    """Return a warning's rule before those of notes, and among notes that of a collapse."""
    kind = min(kinds, key=lambda kind: (rules.RULE[kind].note, kind not in COLLAPSED))
    return rules.RULE[kind]


def _judged_epochs(epochs: Sequence[MeasuredEpoch], bounds: Bounds) -> str:
    """Say in how many epochs no rule was met, counted from the last one that met a rule."""
    judged = 0
    last_collapse = ""
    is_met: dict[str, bool] = {}  # by kind; an epoch without the rule's value changes nothing
    for end, now in enumerate(epochs, 1):
        for rule in rules.RULES:
            if not math.isnan(rule.value(epochs[:end], bounds)):
                is_met[rule.kind] = rule.holds(epochs[:end], bounds)
        met = [kind for kind in is_met if is_met[kind]]
        if met:
            judged = 0
            last_collapse = f"{_most_important(met).kind} until epoch {now.epoch}"
        elif now.epoch > bounds.warmup and math.isfinite(now.spread):
            judged += 1
    if last_collapse:
        return f"no rule of collapse met in the last {judged} judged epochs ({last_collapse})"
    return f"no rule of collapse met in {judged} judged epochs"
