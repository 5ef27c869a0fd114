"""The report's tables of numbers: a section's own, last values over seeds and against p."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from rdm_solo.messages import listed
from rdm_solo.plots.measures import MEASURES
from rdm_solo.report.answers import alive, progress
from rdm_solo.report.captions import SAYS
from rdm_solo.report.measured import cells, last
from rdm_solo.report.ranking import Best, close
from rdm_solo.report.typesetting import relative
from rdm_solo.report.verdicts import BOUNDS, dimensions, shares, verdicts
from rdm_solo.runs.columns import ACCURACY, COLUMNS, LINEAR, Column, charts, compared
from rdm_solo.runs.folder import Run
from rdm_solo.runs.groups import (
    Group,
    counted_runs,
    judged_runs,
    latest_in_words,
    run_name,
    runs_behind,
    so_far,
    spread,
)

# Settings that a table has beside each other; of more, each has a row.
BESIDE = 3
EXPLAINED = (
    "docs/measures.md has their definitions, which one to use, and why other packages' numbers "
    "differ. They compare checkpoints and settings of one method; numbers of different methods "
    "also depend on their projectors, dimensions and batches."
)
OF_ONE_RUN = ("erank/online", "erank/target", "val/acc1", "val/knn_acc1")


class Table(NamedTuple):
    """A caption, the columns' heads, rows whose first cell is their head, and notes beneath."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


def health(groups: Sequence[Group]) -> Table:
    """Each setting: whether it is alive, how far it came, and the numbers that say so."""
    rows = []
    for group in groups:
        runs = counted_runs(group)
        k = max(map(dimensions, runs))
        rows.append(
            [
                *(group.label, alive(group).answer, progress(group), str(len(runs))),
                spread(shares(runs), 1),
                spread(last(runs, "erank/centred"), 1),
                f"{BOUNDS.directions(k):.1f} of {k}" if k else "–",
                latest_in_words(runs, "erank/gap", 2),
            ]
        )
    head = ["setting", "is it alive?", "epochs", "n", "variance, % of second moment"]
    head += ["erank around the mean", "collapse below", "gap"]
    notes = [
        f"Complete collapse is a variance below {100 * (BOUNDS.variance or 0):g} % of the second "
        "moment, dimensional collapse an effective rank around the mean below its bound; both in "
        "the last two measured epochs."
    ]
    return Table("Last values that say whether a setting is alive.", head, rows, notes)


def accuracies(groups: Sequence[Group]) -> Table | None:
    """The last accuracies of each setting; None where nothing was measured."""
    columns = [LINEAR, *reversed(charts()[ACCURACY])]
    members = {group.label: counted_runs(group) for group in groups}
    shown = [c for c in columns if any(last(runs, c.name) for runs in members.values())]
    note = "Linear accuracies are those of python -m rdm_solo.linear run=FOLDER."
    return (
        _values("Last accuracies in per cent.", "setting", members, shown, [note])
        if shown
        else None
    )


def ranking(best: Best) -> Table:
    """The settings from the best down, and how far each is behind."""
    first, digits = best.standings[0], best.column.digits
    said = {True: "yes", False: "no", None: "not known"}
    rows = [
        [
            *(standing.group.label, spread(standing.values, digits), str(len(standing.values))),
            _range(standing.values, digits),
            f"{first.mean - standing.mean:.{digits}f}",
            "best" if standing is first else said[close(first, standing)],
        ]
        for standing in best.standings
    ]
    head = ["setting", best.column.words, "n", "range", "behind", "within one standard deviation?"]
    return Table(best.question, head, rows)


def _range(values: Sequence[float], digits: int) -> str:
    ends = (min(values), max(values))
    return " to ".join(f"{end:.{digits}f}" for end in ends) if len(values) > 1 else "–"


def last_values(groups: Sequence[Group]) -> list[Table]:
    """Last values of each setting, mean and standard deviation over its seeds."""
    notes = [
        "Mean ± standard deviation over the n runs with the most epochs in each setting, in their "
        "last epoch where no other is named. Linear accuracies are those of "
        "python -m rdm_solo.linear run=FOLDER."
    ]
    left = [f"{run_name(run)} ({so_far(run)})" for g in groups for run in runs_behind(g)]
    if left:
        notes.append(f"Not in the means: {listed(left)}.")
    members = {group.label: counted_runs(group) for group in groups}
    elsewhere = {column.name for column in compared()} | set(MEASURES)
    others = [c for c in COLUMNS.values() if c.chart and c.name not in elsewhere]
    return [
        _values("Last values; accuracies in per cent.", "setting", members, compared(), notes),
        _values("Last values of all other charted columns.", "setting", members, others),
    ]


def _values(
    caption: str,
    first: str,
    members: Mapping[str, Sequence[Run]],
    shown: Sequence[Column],
    notes: Sequence[str] = (),
) -> Table:
    """A row for each name's runs: how many they are, and their last values of these columns."""
    head = [first, "n", *(column.words for column in shown)]
    rows = [[name, str(len(runs)), *cells(runs, shown)] for name, runs in members.items()]
    return Table(caption, head, rows, notes)


def measures(groups: Sequence[Group]) -> list[Table]:
    """The field's other measures of rank: what each says, and its last values."""
    shown = [COLUMNS[name] for name in MEASURES if any(group.last(name) for group in groups)]
    if not shown:
        return []
    members = {group.label: counted_runs(group) for group in groups}
    beside = members if len(members) <= BESIDE else {}
    values = [cells(runs, shown) for runs in beside.values()]
    rows = [
        [column.words, *(of_setting[i] for of_setting in values), SAYS[column.name]]
        for i, column in enumerate(shown)
    ]
    head = ["measure", *beside, "what it says"]
    found = [Table("What each measure says, and its last value.", head, rows, [EXPLAINED])]
    if not beside:
        found.append(_values("Last values of these measures.", "setting", members, shown))
    return found


def mechanism(groups: Sequence[Group]) -> Table:
    """Whether each setting's target leads, and whether its filter is low-pass."""
    rows = []
    notes: dict[str, list[str]] = defaultdict(list)
    for group in groups:
        lead, passes, _ = verdicts(judged_runs(group))
        rows.append([group.label, lead.answer, lead.numbers, passes.answer, passes.numbers])
        for verdict in (lead, passes):
            if verdict.caveat:
                notes[verdict.caveat].append(group.label)
    head = ["setting", "does the target lead?", "gap", "is the filter low-pass?", "curve"]
    said = [
        caveat if len(labels) == len(groups) else f"{listed(labels)}: {caveat}"
        for caveat, labels in notes.items()
    ]
    return Table("The verdicts on the mechanism.", head, rows, said)


def each(groups: Sequence[Group]) -> Table:
    """Every run with its verdicts."""
    runs = [(group.label, run) for group in groups for run in group.runs]
    shown = [COLUMNS[name] for name in OF_ONE_RUN]
    rows = [
        [
            f"{label}, seed {run.seed}",
            Markup("<code>{}</code>").format(folder),
            str(run.epochs),
            *cells([run], shown),
            *(verdict.answer for verdict in verdicts([run])),
        ]
        for (label, run), folder in zip(runs, relative([run.folder for _, run in runs]))
    ]
    head = ["run", "folder", "epochs", *(column.words for column in shown)]
    head += ["target leads?", "low-pass?", "collapsed?"]
    return Table("Every run: its last values and the verdicts on it alone.", head, rows)


def against_p(groups: Sequence[Group]) -> list[Table]:
    """For filters that were run with several exponents: the last values against p."""
    families: dict[str, list[Group]] = defaultdict(list)
    for group in groups:
        if group.first.p is not None:
            name = f"{group.method}, filter {group.first.filter}, on {group.first.dataset}"
            families[name].append(group)
    return [
        _values(
            f"{name}: last values against p.",
            "p",
            {
                f"{group.first.p:g}{group.suffix}": counted_runs(group)
                for group in sorted(members, key=lambda group: group.first.p or 0.0)
            },
            compared(),
        )
        for name, members in families.items()
        if len({group.first.p for group in members}) > 1
    ]
