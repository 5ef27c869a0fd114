"""Judge runs: are they alive, does the target lead, is the filter low-pass?"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from omegaconf import OmegaConf

from rdm_solo.collapse import rules as collapse
from rdm_solo.collapse.rules import MIN_GAP, Bounds, MeasuredEpoch
from rdm_solo.report.measured import last
from rdm_solo.runs.folder import Run
from rdm_solo.runs.groups import curve_of, format_latest, mean_std

MIN_SORTED, MIN_DIRECTIONAL = 0.9, 0.5  # rank correlations of a low-pass curve
MOSTLY_MEAN = 0.2  # below this spread, outputs are mostly a constant
BOUNDS = Bounds()
FINAL_EPOCHS = BOUNDS.gap_epochs or 0  # measured epochs that decide which branch leads at the end

UNMEASURED = "not measured"
COLLAPSED = (collapse.COMPLETE, collapse.DIMENSIONAL, collapse.FEW_FEATURES)
FEATURES = "erank/features_centred"
CURVES = ("filter/monotonicity", "filter/monotonicity_directional")


@dataclass(frozen=True)
class Verdict:
    """A question, its answer, whether the answer is good (None: not scored), and the numbers."""

    question: str
    answer: str
    good: bool | None
    numbers: Sequence[str]
    caveat: str = ""
    suspect: bool = False  # not healthy in some runs, or a note applies to one

    @property
    def level(self) -> str:
        """Return the CSS class that sets the colour: good, bad, suspect, or an empty string."""
        if self.good is None:
            return "suspect" if self.suspect else ""
        return "good" if self.good else "bad"


class Outcome(NamedTuple):
    """The answer to a question about one run, and whether the answer is good (None: not scored)."""

    answer: str
    good: bool | None
    suspect: bool = False  # a note applies: the features may or may not be good
    collapsed: bool = False  # the outputs or the features

    @property
    def healthy(self) -> bool:
        return self.good is not False and not self.suspect


def verdicts(runs: Sequence[Run]) -> tuple[Verdict, Verdict, Verdict]:
    """Return the three verdicts on the runs of one setting."""
    return lead(runs), low_pass(runs), health(runs)


def _verdict(
    question: str,
    runs: Sequence[Run],
    judge: Callable[[Run], Outcome],
    numbers: Sequence[str],
    caveat: str = "",
) -> Verdict:
    """Combine the runs' answers; count each answer if they differ."""
    outcomes = [judge(run) if run.diverged is None else outcome(run) for run in runs]
    suspect = not all(each.healthy for each in outcomes)
    counts = Counter(each.answer for each in outcomes)
    scores = {each.good for each in outcomes}
    good = scores.pop() if len(scores) == 1 else None
    answer, *others = counts
    if others:
        answer = "; ".join(f"{answer} ({n} of {len(runs)})" for answer, n in counts.most_common())
    elif answer == UNMEASURED:
        numbers, caveat = ["diagnostics off, or stopped in the first epoch"], ""
    return Verdict(question, answer, good, numbers, caveat, suspect)


def health(runs: Sequence[Run]) -> Verdict:
    """Judge whether runs are alive, collapsed or diverged."""
    numbers = []
    if spreads := last(runs, "feature/spread"):
        numbers.append(f"spread {mean_std(spreads, 2)} (collapse: below {BOUNDS.spread:g})")
    if ranks := last(runs, "erank/centred"):
        k = max(map(dimensions, runs))
        limit = f" of {k} (collapse: below {BOUNDS.min_rank(k):.2f})" if k else ""
        numbers.append(f"effective rank around the mean {mean_std(ranks, 2)}{limit}")
    if ranks := last(runs, FEATURES):
        before = [run.untrained[FEATURES] for run in runs if FEATURES in run.untrained]
        untrained = f" ({mean_std(before, 1)} before training)" if before else ""
        numbers.append(f"features: effective rank around the mean {mean_std(ranks, 1)}{untrained}")
    verdict = _verdict("Is it alive?", runs, outcome, numbers)
    outcomes = [outcome(run) for run in runs]
    unhealthy = [run for run, each in zip(runs, outcomes) if not each.healthy]
    if len(runs) > 1 and unhealthy:
        what = ("diverged" if r.diverged is not None else outcome(r).answer for r in unhealthy)
        counts = Counter(what).items()
        answer = ", ".join(f"{answer} in {n} of {len(runs)} seeds" for answer, n in counts)
        verdict = replace(verdict, answer=answer)
    bad = any(each.good is False for each in outcomes) or all(each.collapsed for each in outcomes)
    return replace(verdict, good=False) if bad else verdict


def outcome(run: Run) -> Outcome:
    """Return whether a run is alive."""
    if run.diverged is not None:
        return Outcome(f"diverged in epoch {run.diverged}", False)
    warmup = float(OmegaConf.select(run.config, "scheduler.warmup_epochs", default=0))
    history = [*_untrained(run), *_history(run)]
    kinds = collapse.kinds_of_collapse(history, Bounds(warmup=warmup, gap_epochs=None))
    rules = [rule for rule in collapse.RULES if rule.kind in kinds]
    if warnings := [rule for rule in rules if not rule.note]:
        return Outcome(warnings[0].answer, False)
    if rules:
        worst = min(rules, key=lambda rule: rule.kind not in COLLAPSED)
        return Outcome(worst.answer, None, suspect=True, collapsed=worst.kind in COLLAPSED)
    measured = [epoch for epoch in history if epoch.epoch and math.isfinite(epoch.spread)]
    if not measured:
        return Outcome(UNMEASURED, None)
    if len([epoch for epoch in measured if epoch.epoch > warmup]) < collapse.IN_A_ROW:
        return Outcome("too early to say", None)
    if not (dimensions(run) and math.isfinite(measured[-1].erank)):
        return Outcome("no complete collapse; the rank was not measured", None)
    if (spread := measured[-1].spread) < MOSTLY_MEAN:
        mean = f"{100 * (1 - spread):.0f} % of the outputs' second moment is their mean"
        return Outcome(f"undecided: {mean}", None)
    return Outcome("alive", True)


def _history(run: Run) -> list[MeasuredEpoch]:
    """Return a run's epochs as input for the collapse rules."""
    rows = [dict(zip(run.metrics, values)) for values in zip(*run.metrics.values())]
    return [_measured_epoch(run, row, int(row["epoch"])) for row in rows]


def _untrained(run: Run) -> list[MeasuredEpoch]:
    """Return the measurements from before the first step, as epoch 0, if there are any."""
    return [_measured_epoch(run, run.untrained, 0)] if run.untrained else []


def _measured_epoch(run: Run, row: Mapping[str, float], epoch: int) -> MeasuredEpoch:
    derived = run.summary.get("derived") or {}
    classes = derived.get("num_classes") or OmegaConf.select(run.config, "dataset.num_classes")
    classes = classes if isinstance(classes, int) else None
    return MeasuredEpoch.read(row, epoch, dimensions(run), classes)


def dimensions(run: Run) -> int:
    """Return the dimension of the outputs that collapse is judged on; 0 if it is unknown."""
    counts = run.spectra.get("dimensions", np.empty(0))  # not trusted: it may hold any values
    return int(np.nan_to_num(counts, posinf=0).max(initial=0))


def lead(runs: Sequence[Run]) -> Verdict:
    """Judge whether the target's effective rank is above the online branch's."""
    gaps = np.concatenate([_gaps(run) for run in runs])
    numbers = [f"leads in {(gaps > MIN_GAP).sum()} of {len(gaps)} measured epochs"]
    for branch in ("target", "online"):
        if len(ranks := curve_of(runs, f"erank/{branch}").mean):
            numbers.append(f"effective rank, {branch}: {ranks[0]:.1f} → {ranks[-1]:.1f}")
    numbers.append(f"gap {format_latest(runs, 'erank/gap', 1)}")
    caveat = _gap_from_setting(runs[0])
    if (gaps > MIN_GAP).any() and not all(outcome(run).healthy for run in runs):
        caveat += " Collapsed networks can have a gap as well, so it proves nothing here."
    if not runs[0].description.leads and not runs[0].description.symmetric:
        caveat += " The target need not lead here, so neither answer is good or bad."
    return _verdict("Does the target lead?", runs, _leads, numbers, caveat)


def _gaps(run: Run) -> np.ndarray:
    """Return log(target rank / online rank) for each measured epoch."""
    gaps = np.array([epoch.gap for epoch in _history(run)])
    return np.asarray(gaps[np.isfinite(gaps)])


def _score(run: Run, answer: str, good: bool) -> Outcome:
    """Score an answer only if the target of the run's method is expected to lead."""
    return Outcome(answer, good if run.description.leads else None)


def _leads(run: Run) -> Outcome:
    gaps = _gaps(run)
    if not len(gaps):
        return Outcome(UNMEASURED, None)
    share = float((gaps > MIN_GAP).mean())
    if share == 0 and (gaps < -MIN_GAP).mean() < 0.5:
        return Outcome("no, the ranks hardly differ", None)
    if share == 0:
        return _score(run, "no, the online branch leads", False)
    if len(gaps) >= FINAL_EPOCHS and (gaps[-FINAL_EPOCHS:] < -MIN_GAP).all():
        return _score(run, "no longer: the online branch leads at the end", False)
    if share < 0.5:
        return _score(run, "in few epochs", False)
    if share < 0.95:
        return Outcome("in most epochs", None)
    answer = "yes, in every epoch" if share == 1 else "yes, in nearly every epoch"
    if filter_causes_gap(run):
        answer += " (caused by the filter)"
    # A gap proves nothing after a collapse, without a filter, or if the filter may act either way.
    if _direction(run) == 0 or _unfiltered(run) or not outcome(run).healthy:
        return Outcome(answer, None)
    return _score(run, answer, True)


def filter_causes_gap(run: Run) -> bool:
    """Return whether the branches share one network and a fixed filter makes the target lead."""
    one_output = not (run.description.momentum or run.description.neighbours)
    return one_output and (_direction(run) or 0) > 0


def low_pass(runs: Sequence[Run]) -> Verdict:
    """Judge whether the filter between the branches damps small eigenvalues."""
    by_order, by_direction = (mean_std(last(runs, name), 2) for name in CURVES)
    caveat = ""
    chosen = runs[0].chosen_filter
    if chosen.momentum:
        caveat = "The filter was chosen by hand, and a running correlation defines it."
    elif chosen.power and runs[0].p == -1:
        caveat = (
            "σ^-1 makes a batch's eigenvalues equal: their directions are then arbitrary, so the "
            "directional test says nothing here."
        )
    elif _direction(runs[0]) is not None and not _unfiltered(runs[0]):
        caveat = (
            "The filter was chosen by hand, so this only checks that it works as intended. It is "
            "applied batch by batch; the curve of a whole epoch may deviate from it."
        )
    numbers = [f"monotonicity {by_order} sorted, {by_direction} directional"]
    numbers = [] if _unfiltered(runs[0]) else numbers
    return _verdict("Is the filter low-pass?", runs, _low_pass, numbers, caveat)


def _low_pass(run: Run) -> Outcome:
    by_order, by_direction = map(run.last, CURVES)
    if not math.isfinite(by_order):
        return Outcome(UNMEASURED, None)
    if _unfiltered(run):
        return Outcome("no filter separates the branches", None)
    if by_order >= MIN_SORTED and by_direction >= MIN_DIRECTIONAL:
        return _score(run, "yes, by both tests", True)
    if by_order >= MIN_SORTED:
        return Outcome("by sorted eigenvalues only", None)
    if by_order <= -MIN_DIRECTIONAL and by_direction <= -MIN_DIRECTIONAL:
        return _score(run, "no, high-pass: the wrong way", False)
    directional = by_direction >= MIN_DIRECTIONAL
    return Outcome("by directions only" if directional else "no clear slope", None)


def _gap_from_setting(run: Run) -> str:
    """Describe how the setting itself contributes to a gap."""
    direction = _direction(run)
    others = ["the target network's lag"] if run.description.momentum else []
    others += ["the queue that the target is drawn from"] if run.description.neighbours else []
    causes = " and ".join(others)
    if _unfiltered(run):
        gap = f": the gap comes only from {causes}." if others else ", so both ranks are equal."
        same = run.chosen_filter.spectral and run.chosen_filter.symmetric
        return f"{'Both branches have the same filter' if same else 'There is no filter'}{gap}"
    if direction is None:
        learned = "Nothing in the setting forces a gap: it was learned."
        return run.description.gap_explanation or learned
    if direction == 0:
        return "The filter is fixed and may raise or lower the rank, so a gap is not evidence."
    also = f" The gap also depends on {causes}." if others else ""
    if direction < 0:
        return f"The filter is fixed and points the wrong way: it causes a negative gap.{also}"
    effect = "keeps the target's rank above the online one's"
    if others:  # the target's outputs come from another network or a queue
        on_target = run.chosen_filter.on_target
        effect = "raises the target's rank" if on_target else "lowers the online rank"
    return (
        f"The filter is fixed and {effect} in each batch (Theorem 3), so the gap is not evidence. "
        "If a few rows are much longer than the rest, scaling all rows to unit length afterwards "
        f"can remove the gap.{also}"
    )


def _unfiltered(run: Run) -> bool:
    """Return whether no filter separates the branches; a target network may still lag."""
    chosen = run.chosen_filter
    return run.description.symmetric or chosen.symmetric or (chosen.power and run.p == 0)


def _direction(run: Run) -> int | None:
    """Return the sign of the gap that a fixed filter causes; 0: unknown; None: no fixed filter."""
    return None if run.description.softmax else run.chosen_filter.direction(run.p)
