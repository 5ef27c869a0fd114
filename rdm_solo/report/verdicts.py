"""The verdicts on runs: does the target lead, is the filter low-pass, did anything collapse?"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from omegaconf import OmegaConf

from rdm_solo.report.measured import change, finite, last
from rdm_solo.runs.folder import Run
from rdm_solo.runs.groups import spread
from rdm_solo.spectra import collapse
from rdm_solo.spectra.collapse import NO_GAP, Bounds, MeasuredEpoch

SORTED, DIRECTIONAL = 0.9, 0.5
# Below this share of variance most of the outputs is their mean.
MOSTLY_MEAN = 0.2
BOUNDS = Bounds()
LAST = BOUNDS.gap_epochs or 0  # measured epochs in a row that say which branch leads at the end

UNMEASURED = "not measured"
CURVES = ("filter/monotonicity", "filter/monotonicity_directional")


@dataclass(frozen=True)
class Verdict:
    """A question, its answer, whether that is good (None: not scored), and the numbers."""

    question: str
    answer: str
    good: bool | None
    numbers: str
    caveat: str = ""


class Outcome(NamedTuple):
    """The answer to a question about one run, and whether it is good (None: not scored)."""

    answer: str
    good: bool | None
    alive: str = ""  # of the question about collapse: the answer to "Is it alive?"


def verdicts(runs: Sequence[Run]) -> tuple[Verdict, Verdict, Verdict]:
    """Return the three verdicts on the runs of one setting."""
    return leads(runs), low_pass(runs), collapsed(runs)


def _verdict(
    question: str, runs: Sequence[Run], judge: Callable[[Run], Outcome], numbers: str, caveat: str
) -> Verdict:
    """Return one answer where all runs agree, else how many runs have which answer."""
    outcomes = [_diverged(run) or judge(run) for run in runs]
    counts = Counter(outcome.answer for outcome in outcomes)
    if set(counts) == {UNMEASURED}:
        why = "diagnostics off, or stopped in the first epoch"
        return Verdict(question, UNMEASURED, None, why)
    goods = {outcome.good for outcome in outcomes}
    good = goods.pop() if len(goods) == 1 else None
    parts = [f"{answer} ({n} of {len(runs)} runs)" for answer, n in counts.most_common()]
    answer = "; ".join(parts) if len(parts) > 1 else outcomes[0].answer
    return Verdict(question, answer, good, numbers, caveat)


def outcome(run: Run) -> Outcome:
    """Return whether a run diverged or collapsed."""
    return _diverged(run) or _collapse(run)


def _diverged(run: Run) -> Outcome | None:
    """Return the answer to every question about a run that diverged."""
    if run.diverged is None:
        return None
    answer = f"diverged in epoch {run.diverged}"
    return Outcome(answer, False, answer)


def leads(runs: Sequence[Run]) -> Verdict:
    """Judge whether the target's effective rank is above the online branch's."""
    above = [100 * share for share in map(_share, runs) if share is not None]
    ranks = [f"{branch} {change(runs, f'erank/{branch}')}" for branch in ("online", "target")]
    numbers = (
        f"gap above zero in {spread(above, 0)} % of the measured epochs; effective rank "
        f"{', '.join(ranks)}"
    )
    caveat = _gap_from_setting(runs[0])
    if any((_share(run) or 0) > 0 and _collapse(run).good is False for run in runs):
        caveat += " The run collapsed, so a gap does not mean that it is healthy."
    if not runs[0].described.leads and not runs[0].described.symmetric:
        caveat += " The target need not lead here, so neither answer is good or bad."
    return _verdict("Does the target lead?", runs, _where_expected(_leads), numbers, caveat)


def _where_expected(judge: Callable[[Run], Outcome]) -> Callable[[Run], Outcome]:
    """Leave out the score of methods that the mechanism says nothing about."""
    return lambda run: judge(run) if run.described.leads else judge(run)._replace(good=None)


def _gaps(run: Run) -> np.ndarray:
    """Return the measured epochs' log of the target's effective rank over the online one's."""
    gaps = np.array([epoch.gap for epoch in _history(run)])
    return np.asarray(gaps[np.isfinite(gaps)])


def _share(run: Run) -> float | None:
    gaps = _gaps(run)
    return float((gaps > NO_GAP).mean()) if len(gaps) else None


def _leads(run: Run) -> Outcome:
    share, gaps = _share(run), _gaps(run)
    if share is None:
        return Outcome(UNMEASURED, None)
    if np.abs(gaps).max() <= NO_GAP:
        return Outcome("no, both ranks are the same", None)
    if share == 0 and (gaps < -NO_GAP).mean() < 0.5:
        return Outcome("no, both ranks are nearly the same", None)
    if share == 0:
        return Outcome("no, the online branch leads", False)
    if len(gaps) >= LAST and (gaps[-LAST:] < -NO_GAP).all():
        count = len(gaps) - int(np.flatnonzero(gaps >= -NO_GAP)[-1]) - 1
        text = f"no longer: the online branch leads in the last {count} measured epochs"
        return Outcome(text, False)
    if share < 0.95:
        return Outcome("in most epochs", None) if share >= 0.5 else Outcome("in few epochs", False)
    answer = "yes, in every epoch" if share == 1 else "yes, in nearly every epoch"
    if made_by_filter(run):
        answer += " (this filter makes it)"
    # A filter that need not make a gap, or a collapse, makes a gap say nothing.
    scored = _direction(run) != 0 and not _unfiltered(run) and _collapse(run).good is not False
    return Outcome(answer, True if scored else None)


def made_by_filter(run: Run) -> bool:
    """Return whether a fixed filter between outputs of one batch and network makes a gap in it."""
    one_output = not (run.described.momentum or run.described.neighbours)
    return one_output and (_direction(run) or 0) > 0


def low_pass(runs: Sequence[Run]) -> Verdict:
    """Judge whether the filter between the branches damps small eigenvalues."""
    by_rank, by_direction = (spread(last(runs, name), 2) for name in CURVES)
    caveat = ""
    if _whitens(runs[0]):
        branch = runs[0].filter.partition("_")[0]
        caveat = (
            f"σ^-1 makes the {branch} eigenvalues of a batch equal: their directions are then "
            "arbitrary, so the directional test says nothing here."
        )
    elif _direction(runs[0]) is not None and not _unfiltered(runs[0]):
        caveat = (
            "The filter was chosen by hand, so this only checks that it works as intended. It is "
            "applied batch by batch; the curve of a whole epoch may deviate from it."
        )
    numbers = f"monotonicity {by_rank} sorted, {by_direction} directional"
    return _verdict("Is the filter low-pass?", runs, _where_expected(_low_pass), numbers, caveat)


def _low_pass(run: Run) -> Outcome:
    by_rank, by_direction = map(run.last, CURVES)
    if not math.isfinite(by_rank):
        return Outcome(UNMEASURED, None)
    if _unfiltered(run):
        return Outcome("there is no filter", None)
    if by_rank >= SORTED and by_direction >= DIRECTIONAL:
        return Outcome("yes, by both tests", True)
    if by_rank >= SORTED:
        return Outcome("by sorted eigenvalues only", None)
    if by_rank <= -DIRECTIONAL and by_direction <= -DIRECTIONAL:
        return Outcome("no, high-pass: the wrong way", False)
    along = by_direction >= DIRECTIONAL
    return Outcome("by directions only" if along else "no clear slope", None)


def collapsed(runs: Sequence[Run]) -> Verdict:
    """Judge whether the outputs collapsed, or the encoder was destroyed."""
    sizes = sorted({dimensions(run) for run in runs} - {0})
    of = f" of {', '.join(map(str, sizes))}" if sizes else ""
    highest = [float(values.max()) for values in finite(runs, "erank/centred")]
    numbers = (
        f"variance {spread(shares(runs), 1)} % of the second moment; effective rank around the "
        f"mean {spread(last(runs, 'erank/centred'), 1)}{of}, highest during training "
        f"{spread(highest, 1)}"
    )
    softmax = _softmax(runs[0])
    caveat = "The variance is the logits', the rank that of the last layer's input."
    return _verdict("Did anything collapse?", runs, _collapse, numbers, caveat if softmax else "")


def _collapse(run: Run) -> Outcome:
    warmup = float(OmegaConf.select(run.config, "scheduler.warmup_epochs", default=0))
    history = _history(run)
    states = collapse.states(history, Bounds(warmup=warmup, gap_epochs=None))
    for rule in collapse.RULES:
        if states.get(rule.kind) == collapse.FOUND:
            return Outcome(f"yes, {rule.answer}", False, f"collapsed: {rule.answer}")
    measured = [epoch for epoch in history if math.isfinite(epoch.variance)]
    if not measured:
        return Outcome(UNMEASURED, None, UNMEASURED)
    if len([epoch for epoch in measured if epoch.epoch > warmup]) < collapse.IN_A_ROW:
        return Outcome("too early to say", None, "too early to say")
    for kind in states:
        text = f"{kind}, but recovering"
        return Outcome(text, None, text)
    if not (dimensions(run) and math.isfinite(measured[-1].erank)):
        text = "no complete collapse; directions were not measured"
        return Outcome(text, None, text)
    if measured[-1].variance < MOSTLY_MEAN:
        text = f"{100 * (1 - measured[-1].variance):.0f} % of the outputs' second moment is their"
        return Outcome(f"no, but {text} mean", None, f"not decided: {text} mean")
    return Outcome("no", True, "alive")


def _history(run: Run) -> list[MeasuredEpoch]:
    """Return what the rules read of a run's table."""
    names, k, softmax = [*run.metrics], dimensions(run), _softmax(run)
    rows = (dict(zip(names, values)) for values in zip(*run.metrics.values()))
    return [MeasuredEpoch.read(r, int(r["epoch"]), k, softmax, _classes(run)) for r in rows]


def _classes(run: Run) -> int | None:
    """Return the number of classes where the folder has it."""
    derived = run.summary.get("derived")
    count = derived.get("num_classes") if isinstance(derived, Mapping) else None
    count = count or OmegaConf.select(run.config, "dataset.num_classes")
    return count if isinstance(count, int) else None


def _softmax(run: Run) -> bool:
    """Return whether outputs went through a softmax; spectra say so of a run that was watched."""
    return run.described.softmax or "lam_logits" in run.spectra


def shares(runs: Sequence[Run]) -> list[float]:
    """Return the last measured variance of each run's outputs, in % of the second moment."""
    shares = [100 * run.last("feature/spread") for run in runs]
    return [share for share in shares if math.isfinite(share)]


def dimensions(run: Run) -> int:
    """Return the dimensions of the outputs that collapse is judged by; 0 where no file has them."""
    counts = run.spectra.get("dimensions", np.empty(0))  # from a folder, so it may be anything
    return int(np.nan_to_num(counts, posinf=0).max(initial=0))


def _gap_from_setting(run: Run) -> str:
    """Say which part of a gap follows from the setting itself."""
    direction, on_target = _direction(run), run.chosen_filter.on_target
    others = ["the target network's lag"] if run.described.momentum else []
    others += ["the queue that the target is drawn from"] if run.described.neighbours else []
    if run.described.symmetric:
        return "Both branches are the same output here, so their ranks are always equal."
    if _unfiltered(run):
        comes = f": the gap comes only from {' and '.join(others)}."
        return "There is no filter" + (comes if others else ", so both ranks are always equal.")
    if direction is None:
        learned = "Nothing in the setting forces a gap: it was learned."
        return run.described.gap_comes_from or learned
    if _whitens(run):
        branch = "target" if on_target else "online branch"
        wrong = "" if on_target else ", which is the wrong way"
        return (
            f"σ^-1 on the {branch} makes all singular values of a batch equal{wrong}: the "
            f"effective rank of the {branch} is then about as high as the batch allows, whatever "
            "was learned."
        )
    if run.chosen_filter.reverses(run.p):
        return (
            "The exponent is below -1, which reverses the order of the directions: Theorem 3 does "
            "not say which branch leads. The filter causes whatever gap there is."
        )
    if direction == 0:
        return "The filter is fixed and causes whatever gap there is, so this is not evidence."
    also = f" The gap also depends on {' and '.join(others)}." if others else ""
    if direction < 0:
        return f"The filter is fixed and points the wrong way: it causes a negative gap.{also}"
    effect = "keeps the target's rank above the online one's"
    if others:  # the target's spectrum is that of other outputs
        effect = "raises the target's rank" if on_target else "lowers the online rank"
    return (
        f"The filter is fixed and {effect} in each batch (Theorem 3), so this is not evidence. "
        "Normalising the rows afterwards can undo this if a few rows are much longer than the "
        f"rest.{also}"
    )


def _unfiltered(run: Run) -> bool:
    """Return whether both branches have one output, but for a target network's lag."""
    chosen = run.chosen_filter
    return run.described.symmetric or chosen.identity or (chosen.power and run.p == 0)


def _whitens(run: Run) -> bool:
    return run.chosen_filter.power and run.p == -1


def _direction(run: Run) -> int | None:
    """Return which branch a fixed filter raises; None where nothing is fixed."""
    return None if run.described.softmax else run.chosen_filter.direction(run.p)
