"""Judge runs: are they alive, does the target lead, is the filter low-pass?

Each question is answered for single runs first (:class:`Outcome`), and the answers on a setting's
runs are then combined into one with numbers and caveats (:class:`Verdict`).
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from rdm_solo.collapse.health import UNMEASURED, Outcome, level
from rdm_solo.collapse.rules import (
    COMPLETE,
    DIMENSIONAL,
    FEW_FEATURES,
    IN_A_ROW,
    MIN_GAP,
    RULE,
    Bounds,
)
from rdm_solo.runs.folder import RunFolder
from rdm_solo.runs.groups import curve_of, format_latest, latest, mean_std

MIN_SORTED, MIN_DIRECTIONAL = 0.9, 0.5  # rank correlations of a low-pass curve
BOUNDS = Bounds()
FINAL_EPOCHS = BOUNDS.gap_epochs or 0  # measured epochs that decide which branch leads at the end

SORTED, DIRECTIONAL = "filter/monotonicity", "filter/monotonicity_directional"
FEATURES = "erank/features_centred"


@dataclass(frozen=True)
class Verdict:
    """A question, its answer, whether the answer is good (None: not scored), and the numbers."""

    question: str
    answer: str
    good: bool | None
    numbers: Sequence[str]
    caveat: str = ""
    suspect: bool = False  # some run is not healthy
    failing: Sequence[str] = ()  # the values that are below their bounds
    remedy: str = ""  # what to change in a run that is not healthy

    @property
    def level(self) -> str:
        return level(self.good, self.suspect)


class JudgedRun(NamedTuple):
    """A run and the answers to the three questions about it."""

    run: RunFolder
    gaps: np.ndarray  # log(target rank / online rank) of each epoch that measured it
    alive: Outcome
    leads: Outcome
    low_pass: Outcome


def judge_run(run: RunFolder) -> JudgedRun:
    """Answer the three questions about a run; each answer on a diverged run is that it diverged."""
    gaps = np.array([epoch.gap for epoch in run.measured_epochs if epoch.epoch])
    gaps = gaps[np.isfinite(gaps)]
    alive = run.health
    if run.diverged is not None:
        return JudgedRun(run, gaps, alive, alive, alive)
    leads = _leads(run, gaps, alive.healthy)
    low_pass = _low_pass(run)
    if not run.description.leads:  # the paper's mechanism does not apply to the method
        leads = leads._replace(good=None)
        low_pass = low_pass._replace(good=None)
    return JudgedRun(run, gaps, alive, leads, low_pass)


def verdicts(judged: Sequence[JudgedRun]) -> tuple[Verdict, Verdict, Verdict]:
    """Return the verdicts on one setting's runs: :func:`lead`, :func:`low_pass`, :func:`health`."""
    runs = [each.run for each in judged]
    return lead(runs, judged), low_pass(runs, judged), health(runs, judged)


def health(runs: Sequence[RunFolder], judged: Sequence[JudgedRun]) -> Verdict:
    """Judge whether runs are alive, collapsed or diverged."""
    outcomes = [each.alive for each in judged]
    any_bad = False
    all_collapsed = True
    counts: Counter[str] = Counter()
    unhealthy = []
    for run, outcome in zip(runs, outcomes):
        any_bad |= outcome.good is False
        all_collapsed &= outcome.collapsed
        if run.diverged is not None:
            counts["diverged"] += 1
        elif not outcome.healthy:
            counts[outcome.answer] += 1
        if not outcome.healthy:
            unhealthy.append((run, outcome))
    failing, advice = "", ""
    if unhealthy:  # the first seed that is bad or, if none is, suspect
        run, outcome = min(unhealthy, key=lambda pair: pair[1].good is not False)
        advice = remedy(run)
        failing = outcome.number
        if failing and len(runs) > 1:
            failing = f"seed {run.seed}: {failing}"
    numbers = _outputs_and_features(runs)
    if len(runs) == 1:  # its failing value is not listed twice
        numbers.pop(outcomes[0].kind, None)
    verdict = replace(
        _combine("Is it alive?", outcomes, list(numbers.values())),
        failing=[failing] if failing else [],
        remedy=advice,
    )
    # A single bad seed makes a setting bad; a collapse makes it bad if all seeds collapsed.
    if any_bad or all_collapsed:
        verdict = replace(verdict, good=False)
    # Of several seeds, only those that are not healthy are named.
    if len(runs) > 1 and counts:
        parts = [f"{answer} in {n} of {len(runs)} seeds" for answer, n in counts.items()]
        verdict = replace(verdict, answer=", ".join(parts))
    return verdict


def _outputs_and_features(runs: Sequence[RunFolder]) -> dict[str, str]:
    """Return the values that collapse is judged on, by the kind of collapse."""
    numbers = {}
    _, ranks = latest(runs, FEATURES)
    if ranks:
        text = f"features: effective rank around the mean {mean_std(ranks, 1)}"
        untrained = before_training(runs, FEATURES)
        if untrained:
            text += f" ({mean_std(untrained, 1)} before training)"
        numbers[FEW_FEATURES] = text
    _, spreads = latest(runs, "feature/spread")
    if spreads:
        text = f"outputs: spread {mean_std(spreads, 2)} (collapse: below {BOUNDS.spread:g})"
        numbers[COMPLETE] = text
    _, ranks = latest(runs, "erank/centred")
    if ranks:
        text = f"outputs: effective rank around the mean {mean_std(ranks, 2)}"
        k = max(run.dimensions for run in runs)
        if k:
            text += f" of {k} (collapse: below {BOUNDS.min_rank(k):.2f})"
        numbers[DIMENSIONAL] = text
    return numbers


def remedy(run: RunFolder) -> str:
    """Return what to change in a run that is not healthy, as its own warning advised."""
    if run.diverged is not None:
        return run.failure
    outcome = run.health
    for warning in run.summary.get("warnings", []):
        if warning["kind"] == outcome.kind and "advice" in warning:  # not in older folders
            return str(warning["advice"])
    rule = RULE.get(outcome.kind)
    if rule is None:
        return ""
    if rule.note and outcome.answer != rule.answer:  # the last epoch alone is below the bound
        return f"Train longer: {IN_A_ROW} low epochs in a row after the warm-up are a collapse."
    return rule.remedy


def before_training(runs: Sequence[RunFolder], column: str) -> list[float]:
    """Return a column's values of the untrained networks."""
    return [run.untrained[column] for run in runs if column in run.untrained]


def _leads(run: RunFolder, gaps: np.ndarray, healthy: bool) -> Outcome:
    if not len(gaps):
        return Outcome(UNMEASURED)
    behind = gaps < -MIN_GAP
    share = float((gaps > MIN_GAP).mean())
    if share == 0 and behind.mean() < 0.5:
        return Outcome("no, the ranks hardly differ")
    if share == 0:
        return Outcome("no, the online branch leads", good=False)
    if len(gaps) >= FINAL_EPOCHS and behind[-FINAL_EPOCHS:].all():
        return Outcome("no longer: the online branch leads at the end", good=False)
    if share < 0.5:
        return Outcome("in few epochs", good=False)
    if share < 0.95:
        return Outcome("in most epochs" if share > 0.5 else "in half of the epochs")
    answer = "yes, in every epoch" if share == 1 else "yes, in nearly every epoch"
    if filter_causes_gap(run):
        answer += " (caused by the filter)"
    # A gap proves nothing after a collapse, without a filter, or if the filter may act either way.
    if not healthy or unfiltered(run) or gap_direction(run) == 0:
        return Outcome(answer)
    return Outcome(answer, good=True)


def lead(runs: Sequence[RunFolder], judged: Sequence[JudgedRun]) -> Verdict:
    """Judge whether the target's effective rank is above the online branch's."""
    gaps = np.concatenate([each.gaps for each in judged])
    epochs_ahead = (gaps > MIN_GAP).sum()
    share = f"leads in {epochs_ahead} of {len(gaps)} measured epochs"
    if len(runs) > 1:
        share += f" of {len(runs)} runs"
    numbers = [share]
    for branch in ("target", "online"):
        ranks = curve_of(runs, f"erank/{branch}").mean
        if len(ranks):
            numbers.append(f"effective rank, {branch}: {ranks[0]:.1f} → {ranks[-1]:.1f}")
    numbers.append(f"gap {format_latest(runs, 'erank/gap', 1)}")
    caveat = _gap_explanation(runs[0])
    if epochs_ahead and not all(each.alive.healthy for each in judged):
        caveat += " Collapsed networks can have a gap as well, so it proves nothing here."
    if not runs[0].description.leads and not runs[0].description.symmetric:
        caveat += " The target need not lead here, so neither answer is good or bad."
    return _combine("Does the target lead?", [each.leads for each in judged], numbers, caveat)


def _gap_explanation(run: RunFolder) -> str:
    """Describe how the setting itself contributes to a gap."""
    chosen, direction = run.chosen_filter, gap_direction(run)
    causes = []  # other than a filter: the target's outputs come from another network or a queue
    if run.description.momentum:
        causes.append("the target network's lag")
    if run.description.neighbours:
        causes.append("the queue that the target is drawn from")
    other_causes = " and ".join(causes)
    if unfiltered(run):
        filters = "There is no filter"
        if chosen.spectral and chosen.symmetric:
            filters = "Both branches have the same filter"
        if causes:
            return f"{filters}: the gap comes only from {other_causes}."
        return f"{filters}, so both ranks are equal."
    if direction is None:
        learned = "Nothing in the setting forces a gap: it was learned."
        return run.description.gap_explanation or learned
    if direction == 0:
        return "The filter is fixed and may raise or lower the rank, so a gap is not evidence."
    also = f" The gap also depends on {other_causes}." if causes else ""
    if direction < 0:
        return f"The filter is fixed and points the wrong way: it causes a negative gap.{also}"
    effect = "keeps the target's rank above the online one's"
    if causes:
        effect = "raises the target's rank" if chosen.on_target else "lowers the online rank"
    return (
        f"The filter is fixed and {effect} in each batch (Theorem 3), so the gap is not evidence. "
        "If a few rows are much longer than the rest, scaling all rows to unit length afterwards "
        f"can remove the gap.{also}"
    )


def _low_pass(run: RunFolder) -> Outcome:
    by_order, by_direction = run.last(SORTED), run.last(DIRECTIONAL)
    if math.isnan(by_order):
        return Outcome(UNMEASURED)
    if unfiltered(run):
        return Outcome("no filter separates the branches")
    passes_sorted = by_order >= MIN_SORTED
    passes_directional = by_direction >= MIN_DIRECTIONAL
    if passes_sorted and passes_directional:
        return Outcome("yes, by both tests", good=True)
    if passes_sorted:
        return Outcome("by sorted eigenvalues only")
    if by_order <= -MIN_DIRECTIONAL and by_direction <= -MIN_DIRECTIONAL:
        return Outcome("no, high-pass: the wrong way", good=False)
    if passes_directional:
        return Outcome("by directions only")
    return Outcome("no clear slope")


def low_pass(runs: Sequence[RunFolder], judged: Sequence[JudgedRun]) -> Verdict:
    """Judge whether the filter between the branches damps small eigenvalues."""
    chosen = runs[0].chosen_filter
    numbers = []
    if not unfiltered(runs[0]):
        _, by_order = latest(runs, SORTED)
        _, by_direction = latest(runs, DIRECTIONAL)
        numbers.append(
            f"monotonicity {mean_std(by_order, 2)} sorted, {mean_std(by_direction, 2)} directional"
        )
    caveat = ""
    if chosen.momentum:
        caveat = "The filter was chosen by hand, and a running correlation defines it."
    elif chosen.power and runs[0].p == -1:
        caveat = (
            "σ^-1 makes a batch's eigenvalues equal: their directions are then arbitrary, so the "
            "directional test says nothing here."
        )
    elif numbers and gap_direction(runs[0]) is not None:
        caveat = (
            "The filter was chosen by hand, so this only checks that it works as intended. It is "
            "applied batch by batch; the curve of a whole epoch may deviate from it."
        )
    outcomes = [each.low_pass for each in judged]
    return _combine("Is the filter low-pass?", outcomes, numbers, caveat)


def _combine(
    question: str, outcomes: Sequence[Outcome], numbers: Sequence[str], caveat: str = ""
) -> Verdict:
    """Combine the runs' answers; count each answer if they differ."""
    counts: Counter[str] = Counter()
    scores = set()
    suspect = False
    for outcome in outcomes:
        counts[outcome.answer] += 1
        scores.add(outcome.good)
        suspect |= not outcome.healthy
    answer = outcomes[0].answer
    if len(counts) > 1:
        parts = [f"{answer} ({n} of {len(outcomes)})" for answer, n in counts.most_common()]
        answer = "; ".join(parts)
    elif answer == UNMEASURED:
        numbers, caveat = ["diagnostics off, or stopped in the first epoch"], ""
    good = scores.pop() if len(scores) == 1 else None
    return Verdict(question, answer, good, numbers, caveat, suspect)


def unfiltered(run: RunFolder) -> bool:
    """Return whether no filter separates the branches; a target network may still lag."""
    chosen = run.chosen_filter
    return run.description.symmetric or chosen.symmetric or (chosen.power and run.p == 0)


def gap_direction(run: RunFolder) -> int | None:
    """Return the sign of the gap that a fixed filter causes; 0: unknown; None: no fixed filter."""
    return None if run.description.softmax else run.chosen_filter.direction(run.p)


def filter_causes_gap(run: RunFolder) -> bool:
    """Return whether the branches share one network and a fixed filter makes the target lead."""
    if run.description.momentum or run.description.neighbours:
        return False
    return gap_direction(run) == 1
