"""What runs show, in words: does the target lead, is the filter low-pass, did anything collapse."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from omegaconf import OmegaConf

from rdm_solo.report.measured import change, finite, last
from rdm_solo.runs.folder import Run
from rdm_solo.runs.groups import spread
from rdm_solo.spectra import collapse
from rdm_solo.spectra.collapse import NO_GAP, Bounds, MeasuredEpoch

SORTED, DIRECTIONAL = 0.9, 0.5
# Below that share of variance most of the outputs is their mean, which is worth saying.
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


Judged = tuple[str, bool | None]  # an answer, and whether that is good


def verdicts(runs: Sequence[Run]) -> tuple[Verdict, Verdict, Verdict]:
    """The three verdicts on the runs of one setting."""
    return leads(runs), low_pass(runs), collapsed(runs)


def _verdict(
    question: str, runs: Sequence[Run], judge: Callable[[Run], Judged], numbers: str, caveat: str
) -> Verdict:
    """One answer where all runs agree, else which answer how often."""
    answers = [diverged(run) or judge(run) for run in runs]
    counts = Counter(answer for answer, _ in answers)
    if set(counts) == {UNMEASURED}:
        why = "diagnostics off, or stopped in the first epoch"
        return Verdict(question, UNMEASURED, None, why)
    goods = {good for _, good in answers}
    good = goods.pop() if len(goods) == 1 else None
    parts = [f"{answer} ({n} of {len(runs)} runs)" for answer, n in counts.most_common()]
    said = "; ".join(parts) if len(parts) > 1 else answers[0][0]
    return Verdict(question, said, good, numbers, caveat)


def fate(run: Run) -> Judged:
    """Whether the run diverged or collapsed, as the answer to whether anything collapsed."""
    return diverged(run) or _collapsed(run)


def diverged(run: Run) -> Judged | None:
    """The answer to every question about a run that diverged."""
    return None if run.diverged is None else (f"diverged in epoch {run.diverged}", False)


def in_words(answer: str) -> str:
    """What became of a run that collapsed or diverged.

    >>> in_words("yes, into few directions"), in_words("diverged in epoch 3")
    ('collapsed: into few directions', 'diverged in epoch 3')
    """
    return answer.replace("yes, ", "collapsed: ")


def leads(runs: Sequence[Run]) -> Verdict:
    """Whether the target's effective rank is above the online branch's."""
    above = [100 * share for share in map(_share, runs) if share is not None]
    ranks = [f"{branch} {change(runs, f'erank/{branch}')}" for branch in ("online", "target")]
    numbers = (
        f"gap above zero in {spread(above, 0)} % of the measured epochs; effective rank "
        f"{', '.join(ranks)}"
    )
    caveat = _gap_from_setting(runs[0])
    if any((_share(run) or 0) > 0 and _collapsed(run)[1] is False for run in runs):
        caveat += " The outputs collapsed, so a gap does not mean that the run is healthy."
    if not runs[0].described.leads and not runs[0].described.symmetric:
        caveat += (
            " Nothing says that the target should lead here, so neither answer is good or bad."
        )
    return _verdict("Does the target lead?", runs, _where_expected(_leads), numbers, caveat)


def _where_expected(judge: Callable[[Run], Judged]) -> Callable[[Run], Judged]:
    """Without a judgement of methods of which the mechanism says nothing."""

    def judged(run: Run) -> Judged:
        answer, good = judge(run)
        return answer, good if run.described.leads else None

    return judged


def _gaps(run: Run) -> np.ndarray:
    """Log of the target's effective rank over the online one's, of the measured epochs."""
    gap, online = (run.metrics.get(f"erank/{name}", np.empty(0)) for name in ("gap", "online"))
    with np.errstate(divide="ignore", invalid="ignore"):
        gaps = np.log1p(gap / online) if len(gap) == len(online) else np.empty(0)
    return np.asarray(gaps[np.isfinite(gaps)])


def _share(run: Run) -> float | None:
    gaps = _gaps(run)
    return float((gaps > NO_GAP).mean()) if len(gaps) else None


def _leads(run: Run) -> Judged:
    share, gaps = _share(run), _gaps(run)
    if share is None:
        return UNMEASURED, None
    if np.abs(gaps).max() <= NO_GAP:
        return "no, both ranks are the same", None
    if share == 0:
        if (gaps < -NO_GAP).mean() < 0.5:
            return "no, both ranks are nearly the same", None
        return "no, the online branch leads", False
    if len(gaps) >= LAST and (gaps[-LAST:] < -NO_GAP).all():
        since = int(np.flatnonzero(gaps >= -NO_GAP)[-1]) + 1
        count = len(gaps) - since
        return f"no longer: the online branch leads in the last {count} measured epochs", False
    if share >= 0.95:
        answer = "yes, in every epoch" if share == 1 else "yes, in nearly every epoch"
        if made_by_filter(run):
            answer += " (this filter makes it)"
        # Of a filter that need not make one, a gap says nothing.
        scored = _direction(run) != 0 and not _unfiltered(run) and _collapsed(run)[1] is not False
        return answer, True if scored else None
    return ("in most epochs", None) if share >= 0.5 else ("in few epochs", False)


def made_by_filter(run: Run) -> bool:
    """Whether a fixed filter between outputs of one batch and network makes a gap in it."""
    one_output = not (run.described.momentum or run.described.neighbours)
    return one_output and (_direction(run) or 0) > 0


def low_pass(runs: Sequence[Run]) -> Verdict:
    """Whether the filter between the branches passes large eigenvalues and damps small ones."""
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


def _low_pass(run: Run) -> Judged:
    by_rank, by_direction = map(run.last, CURVES)
    if not math.isfinite(by_rank):
        return UNMEASURED, None
    if _unfiltered(run):
        return "there is no filter", None
    if by_rank >= SORTED:
        if by_direction >= DIRECTIONAL:
            return "yes, by both tests", True
        return "by sorted eigenvalues only", None
    if by_rank <= -DIRECTIONAL and by_direction <= -DIRECTIONAL:
        return "no, high-pass: the wrong way", False
    return ("by directions only" if by_direction >= DIRECTIONAL else "no clear slope"), None


def collapsed(runs: Sequence[Run]) -> Verdict:
    """Whether the outputs fell together, all of them or into few directions."""
    sizes = sorted({dimensions(run) for run in runs} - {0})
    of = f" of {', '.join(map(str, sizes))}" if sizes else ""
    highest = [float(values.max()) for values in finite(runs, "erank/centred")]
    numbers = (
        f"variance {spread(shares(runs), 1)} % of the second moment; effective rank around the "
        f"mean {spread(last(runs, 'erank/centred'), 1)}{of}, highest during training "
        f"{spread(highest, 1)}"
    )
    caveat = ""
    if _softmax(runs[0]):
        caveat = "The variance is the logits', the rank that of the last layer's input."
    return _verdict("Did anything collapse?", runs, _collapsed, numbers, caveat)


def _collapsed(run: Run) -> Judged:
    warmup = float(OmegaConf.select(run.config, "scheduler.warmup_epochs", default=0))
    measured = _measured_epochs(run)
    judged = [epoch for epoch in measured if epoch.epoch >= warmup + 1]
    if not measured:
        return UNMEASURED, None
    if len(judged) < collapse.IN_A_ROW:
        return "too early to say", None
    shown = collapse.states(measured, Bounds(warmup=warmup, gap_epochs=None))
    for rule in collapse.RULES:
        if shown.get(rule.kind) == collapse.FOUND:
            return rule.answer, False
    for rule in collapse.RULES:
        if rule.kind in shown:
            return f"{rule.measures} {collapse.RISING}", None
    now = judged[-1]
    if not (now.dimensions and math.isfinite(now.erank)):
        return "no complete collapse; directions were not measured", None
    if now.variance < MOSTLY_MEAN:
        mean = 100 * (1 - now.variance)
        return f"no, but {mean:.0f} % of the outputs' second moment is their mean", None
    return "no", True


def _measured_epochs(run: Run) -> list[MeasuredEpoch]:
    """The measured epochs as the watch reads them, without their gap.

    Earlier versions measured neither spread nor directions; unit vectors have the variance as
    their spread.
    """
    epochs = run.metrics.get("epoch", np.empty(0))
    unknown = np.full(len(epochs), np.nan)
    spreads = run.metrics.get("feature/spread", unknown)
    if not np.isfinite(spreads).any() and not run.described.softmax:
        spreads = run.metrics.get("feature/variance", unknown)
    ranks, k = run.metrics.get("erank/centred", unknown), dimensions(run)
    softmax = _softmax(run)
    assigned = run.metrics.get("erank/projection", unknown) if softmax else unknown
    return [
        MeasuredEpoch(int(epoch), spread, rank, k, 0.0, one)
        for epoch, spread, rank, one in zip(epochs, spreads, ranks, assigned)
        if math.isfinite(spread)
    ]


def _softmax(run: Run) -> bool:
    """Whether the outputs went through a softmax; of a run that was watched, its spectra say so."""
    return run.described.softmax or "lam_logits" in run.spectra


def shares(runs: Sequence[Run]) -> list[float]:
    """The variance of each run's outputs in its last measured epoch, in % of the second moment."""
    return [100 * epochs[-1].variance for epochs in map(_measured_epochs, runs) if epochs]


def dimensions(run: Run) -> int:
    """How many dimensions the outputs have that collapse is judged by; 0 where no file says so."""
    known = run.spectra.get("dimensions", np.empty(0))  # what a folder says, which may be anything
    return int(np.nan_to_num(known, posinf=0).max(initial=0))


def _gap_from_setting(run: Run) -> str:
    """What of a gap follows from the setting itself."""
    lags, target = run.described.momentum, run.chosen_filter.on_target
    direction = _direction(run)
    if run.described.symmetric:
        return "Both branches are the same output here, so their ranks are always equal."
    if _unfiltered(run):
        differ = ["the target network's lag"] if lags else []
        differ += ["the queue that the target is drawn from"] if run.described.neighbours else []
        comes = f": the gap comes only from {' and '.join(differ)}."
        return "There is no filter" + (comes if differ else ", so both ranks are always equal.")
    if direction is None:
        learned = "Nothing in the setting forces a gap: it was learned."
        return run.described.gap_comes_from or learned
    if _whitens(run):
        branch = "target" if target else "online branch"
        wrong = "" if target else ", which is the wrong way"
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
    queue = run.described.neighbours
    causes = ["the target network's lag"] if lags else []
    causes += ["the queue that the target is drawn from"] if queue else []
    also = f" Of the gap, {' and '.join(causes)} may add a part or take one away." if causes else ""
    if direction < 0:
        return f"The filter is fixed and points the wrong way: it causes a negative gap.{also}"
    effect = "keeps the target's rank above the online one's"
    if causes:  # the target's spectrum is that of other outputs
        effect = "raises the target's rank" if target else "lowers the online rank"
    return (
        f"The filter is fixed and {effect} in each batch (Theorem 3), so this is not evidence. "
        f"Where rows are then scaled to unit length, a few very long ones can undo it.{also}"
    )


def _unfiltered(run: Run) -> bool:
    """Whether both branches have one output, but for a target network's lag."""
    chosen = run.chosen_filter
    return run.described.symmetric or chosen.identity or (chosen.power and run.p == 0)


def _whitens(run: Run) -> bool:
    return run.chosen_filter.power and run.p == -1


def _direction(run: Run) -> int | None:
    """Which branch a fixed filter lifts; None where nothing is fixed."""
    return None if run.described.softmax else run.chosen_filter.direction(run.p)
