"""How the fourth part does by other definitions, and which runs make the difference."""

from collections.abc import Sequence
from functools import partial

from rdm_solo.evidence import markdown
from rdm_solo.evidence.collapse import judging
from rdm_solo.evidence.collapse.judging import IN_TIME, LABELS, WARMUP, Judged
from rdm_solo.evidence.collapse.runs import PLAN, series
from rdm_solo.evidence.intervals import rate
from rdm_solo.spectra.collapse import IN_A_ROW

FIRST = PLAN["judged_from"]
AFTER_WARMUP = WARMUP + 1
KNN = ("features",)

SECTION = """\
## The fourth part by other definitions

By this page's definition a run that recovers has not collapsed. That was decided when 12 runs of
the pilot (65 runs with other seeds, of which none is counted) had ended, because a healthy run that
learns slowly would have counted as collapsed. The event could also be the first of {in_a_row}
epochs in a row in which a label holds, whatever comes after. Collapses that were warned of in time,
by each definition:

{table}

By the kNN label alone, 95 % {reached} reached by this page's definition: {knn}. Where an interval
begins below 95 % and ends above it, the true rate may lie on either side.

For {floor} of the {collapses} collapses this page's event is epoch {first}, the first that is
judged; {before} had the label in the epoch before, too. There the study tests that a warning had
come by epoch {by}, not that it came within {in_time} epochs of the beginning of the collapse. The
warnings wait for {warmup} epochs of warm-up and need {needed} measured epochs in a row, so no
warning of a collapse comes before epoch {earliest}: of the {all} events that are counted from epoch
1 on, {early} are too early to be warned of in time.

In {differ} runs a label held for {in_a_row} epochs in a row, from epoch {after} on, but not to the
end. {without} of them have no label by this page's definition: at the end their kNN is {gain}
points above the untrained network, and their outputs have {directions} directions.

{lines}
"""


def section(runs: Sequence[Judged]) -> str:
    """The section of the page; nothing where no run collapsed."""
    collapses = [run for run in runs if run.collapsed]
    if not collapses:
        return ""
    definitions = {f"holds to the end from it, {FIRST} or later (this page's)": judging.events}
    for start in (FIRST, AFTER_WARMUP, 1):
        by = partial(judging.first_in_a_row, start=start)
        definitions[f"first of {PLAN['in_a_row']} in a row, {start} or later"] = by
    table = [
        [name, *(rate(*judging.named(judging.redefined(runs, by, of))) for of in (LABELS, KNN))]
        for name, by in definitions.items()
    ]
    named, total = judging.named(judging.redefined(runs, judging.events, KNN))
    floor = [run for run in collapses if _event(run) == FIRST]
    from_start = judging.redefined(runs, partial(judging.first_in_a_row, start=1))
    from_first = [_event(run) for run in from_start if run.collapsed]
    earliest = WARMUP + IN_A_ROW
    lines = {run.row["name"]: line for run in runs if (line := _recovered(run))}
    without = [run for run in runs if run.row["name"] in lines and not run.collapsed]
    return SECTION.format(
        table=markdown.table(["epoch of the event", "any label", "kNN label alone"], table),
        reached="is" if named >= 0.95 * total else "is not",
        knn=rate(named, total),
        floor=len(floor),
        collapses=len(collapses),
        before=sum(_held_before(run) for run in floor),
        first=FIRST,
        by=FIRST + IN_TIME,
        in_time=IN_TIME,
        in_a_row=PLAN["in_a_row"],
        warmup=WARMUP,
        needed=IN_A_ROW,
        earliest=earliest,
        all=len(from_first),
        early=sum(event + IN_TIME < earliest for event in from_first),
        after=AFTER_WARMUP,
        differ=len(lines),
        without=len(without),
        gain=_range([_gain(run) for run in without], 1),
        directions=_range([_directions(run) for run in without], 2),
        lines="\n".join(lines.values()) or "none",
    )


def _event(run: Judged) -> int:
    return min(run.events.values())


def _held_before(run: Judged) -> bool:
    """Whether a label with that event held in the epoch before it, too."""
    held = judging.labels_of_epochs(run.row)
    return any(held[label][at - 1] for label, at in run.events.items() if at == _event(run))


def _gain(run: Judged) -> float:
    """The points of kNN accuracy at the end above the untrained network."""
    knn = series(run.row, "knn")
    return knn[-1] - knn[0]


def _directions(run: Judged) -> float:
    return series(run.row, "held_out_rank")[-1]


def _range(values: Sequence[float], digits: int) -> str:
    ends = (f"{end(values):.{digits}f}" for end in (min, max)) if values else ("–", "–")
    return " to ".join(ends)


def _recovered(run: Judged) -> str:
    """A line on labels that held for epochs in a row, but not to the end; nothing without any."""
    held = judging.labels_of_epochs(run.row)
    found = []
    for label, start in judging.first_in_a_row(run.row, AFTER_WARMUP).items():
        if label not in run.events:
            found.append(f"{label} in epochs {start} to {held[label].index(False, start) - 1}")
    if not found:
        return ""
    end = f"at the end kNN {_gain(run):+.1f} points, {_directions(run):.2f} directions"
    said = ", ".join(f"{kind} in epoch {at}" for kind, at in run.warnings.items()) or "nothing"
    kept = ", ".join(f"{label} from epoch {at}" for label, at in run.events.items()) or "none"
    about = f"{run.row['data']}: {run.row['setting']}"
    return f"- {about}; {', '.join(found)}; {end}; label to the end: {kept}; warned of: {said}"
