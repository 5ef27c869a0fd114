"""Judge one run: is it alive, does the target lead, is the filter low-pass?"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from omegaconf import OmegaConf

from rdm_solo.collapse import rules as collapse
from rdm_solo.collapse.rules import MIN_GAP, Bounds, MeasuredEpoch
from rdm_solo.runs.folder import Run

MIN_SORTED, MIN_DIRECTIONAL = 0.9, 0.5  # rank correlations of a low-pass curve
MOSTLY_MEAN = 0.2  # below this spread, outputs are mostly a constant
BOUNDS = Bounds()
FINAL_EPOCHS = BOUNDS.gap_epochs or 0  # measured epochs that decide which branch leads at the end

UNMEASURED = "not measured"
COLLAPSED = (collapse.COMPLETE, collapse.DIMENSIONAL, collapse.FEW_FEATURES)
SORTED, DIRECTIONAL = "filter/monotonicity", "filter/monotonicity_directional"


class Outcome(NamedTuple):
    """The answer to a question about one run, and whether the answer is good (None: not scored)."""

    answer: str
    good: bool | None = None
    suspect: bool = False  # a note applies, which healthy runs can have too
    collapsed: bool = False  # the outputs or the features

    @property
    def healthy(self) -> bool:
        return self.good is not False and not self.suspect

    @property
    def level(self) -> str:
        """Return the CSS class that sets the colour: good, bad, suspect, or an empty string."""
        if self.good is False or self.collapsed:
            return "bad"
        if self.suspect:
            return "suspect"
        return "good" if self.good else ""


class JudgedRun(NamedTuple):
    """A run and the answers to the three questions about it."""

    run: Run
    gaps: np.ndarray  # log(target rank / online rank) of each epoch that measured it
    alive: Outcome
    leads: Outcome
    low_pass: Outcome


def judge_run(run: Run) -> JudgedRun:
    """Answer the three questions about a run; each answer on a diverged run is that it diverged."""
    epochs = measured_epochs(run)
    gaps = np.array([epoch.gap for epoch in epochs if epoch.epoch])
    gaps = gaps[np.isfinite(gaps)]
    alive = _alive(run, epochs)
    if run.diverged is not None:
        return JudgedRun(run, gaps, alive, alive, alive)
    leads = _leads(run, gaps, alive.healthy)
    low_pass = _low_pass(run)
    if not run.description.leads:  # the paper's mechanism does not apply to the method
        leads = leads._replace(good=None)
        low_pass = low_pass._replace(good=None)
    return JudgedRun(run, gaps, alive, leads, low_pass)


def measured_epochs(run: Run) -> list[MeasuredEpoch]:
    """Return what the collapse rules read of each epoch; epoch 0 is the untrained network."""
    derived = run.summary.get("derived") or {}
    classes = derived.get("num_classes") or OmegaConf.select(run.config, "dataset.num_classes")
    if not isinstance(classes, int):  # unknown, or a value that no run writes
        classes = None
    k = dimensions(run)
    epochs = []
    if run.untrained:
        epochs.append(MeasuredEpoch.read(run.untrained, 0, k, classes))
    for values in zip(*run.metrics.values()):
        row = dict(zip(run.metrics, values))
        epochs.append(MeasuredEpoch.read(row, int(row["epoch"]), k, classes))
    return epochs


def dimensions(run: Run) -> int:
    """Return the dimension of the outputs that collapse is judged on; 0 if it is unknown."""
    counts = run.spectra.get("dimensions", np.empty(0))  # not trusted: it may hold any values
    return int(np.nan_to_num(counts, posinf=0).max(initial=0))


def _alive(run: Run, epochs: Sequence[MeasuredEpoch]) -> Outcome:
    if run.diverged is not None:
        return Outcome(f"diverged in epoch {run.diverged}", good=False)
    warmup = float(OmegaConf.select(run.config, "scheduler.warmup_epochs", default=0))
    kinds = collapse.kinds_of_collapse(epochs, Bounds(warmup=warmup, gap_epochs=None))
    # If several notes apply, a collapse is named first.
    kinds.sort(key=COLLAPSED.__contains__, reverse=True)
    rules = [collapse.RULE[kind] for kind in kinds]
    for rule in rules:
        if not rule.note:
            return Outcome(rule.answer, good=False)
    if rules:
        return Outcome(rules[0].answer, suspect=True, collapsed=kinds[0] in COLLAPSED)
    measured = [epoch for epoch in epochs if epoch.epoch and math.isfinite(epoch.spread)]
    if not measured:
        return Outcome(UNMEASURED)
    if sum(epoch.epoch > warmup for epoch in measured) < collapse.IN_A_ROW:
        return Outcome("too early to say")
    if not dimensions(run) or not math.isfinite(measured[-1].erank):
        return Outcome("no complete collapse; the rank was not measured")
    spread = measured[-1].spread
    if spread < MOSTLY_MEAN:
        mean = f"{100 * (1 - spread):.0f} % of the outputs' second moment is their mean"
        return Outcome(f"undecided: {mean}")
    return Outcome("alive", good=True)


def _leads(run: Run, gaps: np.ndarray, healthy: bool) -> Outcome:
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
        return Outcome("in most epochs")
    answer = "yes, in every epoch" if share == 1 else "yes, in nearly every epoch"
    if filter_causes_gap(run):
        answer += " (caused by the filter)"
    # A gap proves nothing after a collapse, without a filter, or if the filter may act either way.
    if not healthy or unfiltered(run) or gap_direction(run) == 0:
        return Outcome(answer)
    return Outcome(answer, good=True)


def _low_pass(run: Run) -> Outcome:
    by_order, by_direction = run.last(SORTED), run.last(DIRECTIONAL)
    if math.isnan(by_order):
        return Outcome(UNMEASURED)
    if unfiltered(run):
        return Outcome("no filter separates the branches")
    if by_order >= MIN_SORTED and by_direction >= MIN_DIRECTIONAL:
        return Outcome("yes, by both tests", good=True)
    if by_order >= MIN_SORTED:
        return Outcome("by sorted eigenvalues only")
    if by_order <= -MIN_DIRECTIONAL and by_direction <= -MIN_DIRECTIONAL:
        return Outcome("no, high-pass: the wrong way", good=False)
    if by_direction >= MIN_DIRECTIONAL:
        return Outcome("by directions only")
    return Outcome("no clear slope")


def unfiltered(run: Run) -> bool:
    """Return whether no filter separates the branches; a target network may still lag."""
    chosen = run.chosen_filter
    return run.description.symmetric or chosen.symmetric or (chosen.power and run.p == 0)


def gap_direction(run: Run) -> int | None:
    """Return the sign of the gap that a fixed filter causes; 0: unknown; None: no fixed filter."""
    return None if run.description.softmax else run.chosen_filter.direction(run.p)


def filter_causes_gap(run: Run) -> bool:
    """Return whether the branches share one network and a fixed filter makes the target lead."""
    if run.description.momentum or run.description.neighbours:
        return False
    return gap_direction(run) == 1
