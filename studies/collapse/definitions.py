"""How the fourth part does by other definitions, and which runs make the difference."""

from collections.abc import Sequence
from functools import partial

from rdm_solo.spectra.collapse import IN_A_ROW
from studies import markdown
from studies.collapse import judging
from studies.collapse.judging import IN_TIME, LABELS, WARMUP, Judged
from studies.collapse.plan import PLAN
from studies.intervals import rate
from studies.table import series

FIRST = PLAN["judged_from"]
AFTER_WARMUP = WARMUP + 1
KNN = ("features",)

SECTION = """\
## The fourth part by other definitions

By this page's definition a run that recovers has not collapsed. That was decided after the first 12
runs of the pilot (65 runs with other seeds, none of them counted), because a healthy run that
learns slowly would have counted as collapsed. The event could also be the first of {in_a_row}
epochs in a row in which a label holds, whatever comes after. Collapses that were detected in time,
by each definition:

{table}

By the kNN label alone, 95 % {reached} reached by this page's definition: {knn}. Where an interval
begins below 95 % and ends above it, the true rate may lie on either side.

For {floor} of the {collapses} collapses this page's event is epoch {first}, the first that is
judged; {before} of these already had the label in the epoch before. For them the study tests that a
warning had come by epoch {by}, not that it came within {in_time} epochs of the beginning of the
collapse. The warnings wait for {warmup} epochs of warm-up and need {needed} measured epochs in a
row, so no warning of a collapse comes before epoch {earliest}: of the {all} events that are counted
from epoch 1 on, {early} are too early to be detected in time.

In {differ} runs a label held for {in_a_row} epochs in a row, from epoch {after} on, but not to the
end. {without} of them have no label by this page's definition: at the end their kNN is {gain}
points above the untrained network, and their outputs have {directions} directions.

{lines}
"""


def section(runs: Sequence[Judged]) -> str:
    """Return the section of the page; nothing if no run collapsed."""
    collapses = [run for run in runs if run.collapsed]
    if not collapses:
        return ""
    definitions = {f"holds to the end from it, {FIRST} or later (this page's)": judging.events}
    for start in (FIRST, AFTER_WARMUP, 1):
        name = f"first of {PLAN['in_a_row']} in a row, {start} or later"
        definitions[name] = partial(judging.first_in_a_row, start=start)
    table = [
        [
            name,
            *(rate(*judging.in_time(judging.redefined(runs, by, of))) for of in (LABELS, KNN)),
        ]
        for name, by in definitions.items()
    ]
    in_time, total = judging.in_time(judging.redefined(runs, judging.events, KNN))
    floor = [run for run in collapses if _event(run) == FIRST]
    from_start = judging.redefined(runs, partial(judging.first_in_a_row, start=1))
    first_events = [_event(run) for run in from_start if run.collapsed]
    earliest = WARMUP + IN_A_ROW
    recoveries = [(run, line) for run in runs if (line := _recovery(run))]
    without = [run for run, _ in recoveries if not run.collapsed]
    return SECTION.format(
        table=markdown.table(["epoch of the event", "any label", "kNN label alone"], table),
        reached="is" if in_time >= 0.95 * total else "is not",
        knn=rate(in_time, total),
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
        all=len(first_events),
        early=sum(event + IN_TIME < earliest for event in first_events),
        after=AFTER_WARMUP,
        differ=len(recoveries),
        without=len(without),
        gain=_range([_gain(run) for run in without], 1),
        directions=_range([_directions(run) for run in without], 2),
        lines="\n".join(line for _, line in recoveries) or "none",
    )


def _event(run: Judged) -> int:
    return min(run.events.values())


def _held_before(run: Judged) -> bool:
    """Return whether a label with that event also held in the epoch before it."""
    labels = judging.labels_of_epochs(run.row)
    return any(labels[label][at - 1] for label, at in run.events.items() if at == _event(run))


def _gain(run: Judged) -> float:
    """Return by how many points kNN accuracy ends above the untrained network."""
    knn = series(run.row["knn"])
    return knn[-1] - knn[0]


def _directions(run: Judged) -> float:
    return series(run.row["held_out_rank"])[-1]


def _range(values: Sequence[float], digits: int) -> str:
    ends = (f"{end(values):.{digits}f}" for end in (min, max)) if values else ("–", "–")
    return " to ".join(ends)


def _recovery(run: Judged) -> str:
    """Return a line on labels that held for epochs in a row but not to the end, if any did."""
    labels = judging.labels_of_epochs(run.row)
    passing = []
    for label, start in judging.first_in_a_row(run.row, AFTER_WARMUP).items():
        if label not in run.events:
            last = labels[label].index(False, start) - 1
            passing.append(f"{label} in epochs {start} to {last}")
    if not passing:
        return ""
    end = f"at the end kNN {_gain(run):+.1f} points, {_directions(run):.2f} directions"
    warned = ", ".join(f"{kind} in epoch {at}" for kind, at in run.warnings.items()) or "nothing"
    kept = ", ".join(f"{label} from epoch {at}" for label, at in run.events.items()) or "none"
    about = f"{run.row['data']}: {run.row['setting']}"
    return f"- {about}; {', '.join(passing)}; {end}; label to the end: {kept}; warned of: {warned}"
