"""Combine the answers on a setting's runs into verdicts with numbers and caveats."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rdm_solo.collapse.rules import MIN_GAP
from rdm_solo.report.measured import last
from rdm_solo.report.outcomes import (
    BOUNDS,
    DIRECTIONAL,
    SORTED,
    UNMEASURED,
    JudgedRun,
    Outcome,
    dimensions,
    gap_direction,
    unfiltered,
)
from rdm_solo.runs.folder import Run
from rdm_solo.runs.groups import curve_of, format_latest, mean_std

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

    @property
    def level(self) -> str:
        """Return the CSS class that sets the colour: good, bad, suspect, or an empty string."""
        if self.good is None:
            return "suspect" if self.suspect else ""
        return "good" if self.good else "bad"


def verdicts(judged: Sequence[JudgedRun]) -> tuple[Verdict, Verdict, Verdict]:
    """Return the verdicts on one setting's runs: :func:`lead`, :func:`low_pass`, :func:`health`."""
    runs, gaps, alive, leads, filters = zip(*judged)  # a sequence of each field
    return (
        lead(runs, np.concatenate(gaps), leads, alive),
        low_pass(runs, filters),
        health(runs, alive),
    )


def lead(
    runs: Sequence[Run], gaps: np.ndarray, outcomes: Sequence[Outcome], alive: Sequence[Outcome]
) -> Verdict:
    """Judge whether the target's effective rank is above the online branch's."""
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
    if epochs_ahead and not all(outcome.healthy for outcome in alive):
        caveat += " Collapsed networks can have a gap as well, so it proves nothing here."
    if not runs[0].description.leads and not runs[0].description.symmetric:
        caveat += " The target need not lead here, so neither answer is good or bad."
    return _combine("Does the target lead?", outcomes, numbers, caveat)


def _gap_explanation(run: Run) -> str:
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


def low_pass(runs: Sequence[Run], outcomes: Sequence[Outcome]) -> Verdict:
    """Judge whether the filter between the branches damps small eigenvalues."""
    chosen = runs[0].chosen_filter
    numbers = []
    if not unfiltered(runs[0]):
        by_order, by_direction = last(runs, SORTED), last(runs, DIRECTIONAL)
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
    return _combine("Is the filter low-pass?", outcomes, numbers, caveat)


def health(runs: Sequence[Run], outcomes: Sequence[Outcome]) -> Verdict:
    """Judge whether runs are alive, collapsed or diverged."""
    numbers = []
    spreads, ranks = last(runs, "feature/spread"), last(runs, "erank/centred")
    if spreads:
        numbers.append(f"spread {mean_std(spreads, 2)} (collapse: below {BOUNDS.spread:g})")
    if ranks:
        text = f"effective rank around the mean {mean_std(ranks, 2)}"
        k = max(map(dimensions, runs))
        if k:
            text += f" of {k} (collapse: below {BOUNDS.min_rank(k):.2f})"
        numbers.append(text)
    ranks = last(runs, FEATURES)
    if ranks:
        text = f"features: effective rank around the mean {mean_std(ranks, 1)}"
        untrained = [run.untrained[FEATURES] for run in runs if FEATURES in run.untrained]
        if untrained:
            text += f" ({mean_std(untrained, 1)} before training)"
        numbers.append(text)
    verdict = _combine("Is it alive?", outcomes, numbers)
    # A single bad seed makes a setting bad; a collapse makes it bad if all seeds collapsed.
    scores = {outcome.good for outcome in outcomes}
    if False in scores or all(outcome.collapsed for outcome in outcomes):
        verdict = replace(verdict, good=False)
    # Of several seeds, only those that are not healthy are named.
    counts: Counter[str] = Counter()
    for run, outcome in zip(runs, outcomes):
        if run.diverged is not None:
            counts["diverged"] += 1
        elif not outcome.healthy:
            counts[outcome.answer] += 1
    if len(runs) > 1 and counts:
        parts = [f"{answer} in {n} of {len(runs)} seeds" for answer, n in counts.items()]
        verdict = replace(verdict, answer=", ".join(parts))
    return verdict


def _combine(
    question: str, outcomes: Sequence[Outcome], numbers: Sequence[str], caveat: str = ""
) -> Verdict:
    """Combine the runs' answers; count each answer if they differ."""
    counts = Counter(outcome.answer for outcome in outcomes)
    answer = outcomes[0].answer
    if len(counts) > 1:
        parts = [f"{answer} ({n} of {len(outcomes)})" for answer, n in counts.most_common()]
        answer = "; ".join(parts)
    elif answer == UNMEASURED:
        numbers, caveat = ["diagnostics off, or stopped in the first epoch"], ""
    scores = {outcome.good for outcome in outcomes}
    good = outcomes[0].good if len(scores) == 1 else None
    suspect = not all(outcome.healthy for outcome in outcomes)
    return Verdict(question, answer, good, numbers, caveat, suspect)
