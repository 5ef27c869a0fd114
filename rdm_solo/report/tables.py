"""The report's tables: health, rankings, verdicts, last values, settings."""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup
from omegaconf import OmegaConf

from rdm_solo.messages import finite, listed
from rdm_solo.plots.epochs import MEASURES
from rdm_solo.report.answers import alive, progress
from rdm_solo.report.measured import cells, last
from rdm_solo.report.ranking import Ranking, close
from rdm_solo.report.typesetting import relative
from rdm_solo.report.verdicts import BOUNDS, dimensions, shares, verdicts
from rdm_solo.runs.columns import COLUMNS, Column, compared
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
from rdm_solo.runs.labels import exponent

OF_ONE_RUN = ("erank/online", "erank/target", "val/acc1", "val/knn_acc1")


class Table(NamedTuple):
    """A caption, the columns' heads, rows that begin with their head, and notes below."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


def health(groups: Sequence[Group]) -> Table:
    """Return each setting's health with the numbers it is judged by."""
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
    return Table("Health of each setting: last values.", head, rows)


def ranking(ranked: Ranking) -> Table:
    """Return the settings from the best down, and how far each is behind."""
    first, digits = ranked.order[0], ranked.column.digits
    words = {True: "yes", False: "no", None: "unknown"}
    rows = [
        [
            *(setting.group.label, spread(setting.values, digits), str(len(setting.values))),
            f"{min(setting.values):.{digits}f} to {max(setting.values):.{digits}f}",
            f"{first.mean - setting.mean:.{digits}f}",
            "best" if setting is first else words[close(first, setting)],
        ]
        for setting in ranked.order
    ]
    head = ["setting", ranked.column.words, "n", "range", "behind"]
    return Table(ranked.question, [*head, "within one standard deviation?"], rows)


def last_values(groups: Sequence[Group]) -> list[Table]:
    """Return the last values of each setting, first those that compare settings."""
    notes = [
        "Mean ± standard deviation over the n runs with the most epochs in each setting, in their "
        "last epoch unless another is named. Linear accuracies come from "
        "python -m rdm_solo.linear run=FOLDER."
    ]
    if left_out := [f"{run_name(r)} ({so_far(r)})" for g in groups for r in runs_behind(g)]:
        notes.append(f"Not in the means: {listed(left_out)}.")
    elsewhere = {column.name for column in compared()} | set(MEASURES)
    others = [c for c in COLUMNS.values() if c.chart and c.name not in elsewhere]
    return [
        _values("Last values; accuracies in per cent.", groups, compared(), notes),
        _values("Other final values.", groups, others),
    ]


def _values(
    caption: str, groups: Sequence[Group], columns: Sequence[Column], notes: Sequence[str] = ()
) -> Table:
    rows = []
    for group in groups:
        runs = counted_runs(group)
        rows.append([group.label, str(len(runs)), *cells(runs, columns)])
    return Table(caption, ["setting", "n", *(column.words for column in columns)], rows, notes)


def measures(groups: Sequence[Group]) -> list[Table]:
    """Return the field's other measures of rank: how to read each, and its last values."""
    columns = [COLUMNS[name] for name in MEASURES if any(group.last(name) for group in groups)]
    if not columns:
        return []
    note = (
        "docs/measures.md has their definitions and says which one to use and why other packages' "
        "numbers differ. They compare checkpoints and settings of one method. Numbers of different "
        "methods also depend on their projectors, dimensions and batches."
    )
    rows = [[column.words, MEASURES[column.name]] for column in columns]
    explained = Table("How to read each measure.", ["measure", "what it says"], rows, [note])
    return [explained, _values("Last values.", groups, columns)]


def mechanism(groups: Sequence[Group]) -> Table:
    """Return whether each setting's target leads, and whether its filter is low-pass."""
    rows = []
    caveats: dict[str, list[str]] = defaultdict(list)
    for group in groups:
        lead, low_pass, _ = verdicts(judged_runs(group))
        rows.append([group.label, lead.answer, lead.numbers, low_pass.answer, low_pass.numbers])
        for verdict in (lead, low_pass):
            if verdict.caveat:
                caveats[verdict.caveat].append(group.label)
    head = ["setting", "does the target lead?", "gap", "is the filter low-pass?", "curve"]
    return Table("The verdicts on the mechanism.", head, rows, _named(caveats, len(groups)))


def _named(sentences: dict[str, list[str]], everything: int) -> list[str]:
    """Return the sentences, with names before those that do not hold for everything."""
    return [
        text if len(names) == everything else f"{listed(names)}: {text}"
        for text, names in sentences.items()
    ]


def each(groups: Sequence[Group]) -> Table:
    """Return every run with its own verdicts."""
    runs = [(group.label, run) for group in groups for run in group.runs]
    columns = [COLUMNS[name] for name in OF_ONE_RUN]
    rows = [
        [
            f"{label}, seed {run.seed}",
            Markup("<code>{}</code>").format(folder),
            str(run.epochs),
            *cells([run], columns),
            *(verdict.answer for verdict in verdicts([run])),
        ]
        for (label, run), folder in zip(runs, relative([run.folder for _, run in runs]))
    ]
    head = ["run", "folder", "epochs", *(column.words for column in columns)]
    head += ["target leads?", "low-pass?", "collapsed?"]
    return Table("Every run: its last values and its own verdicts.", head, rows)


def settings(groups: Sequence[Group]) -> Table:
    """Return what was run; columns without any entry are left out."""
    head = ["setting", "filter", "p", "data", "network", "batch", "seeds", "epochs", "time", "on"]
    rows = []
    versions: dict[str, list[str]] = defaultdict(list)
    for group in groups:
        run, runs = group.first, group.runs
        times = [s for r in runs if (s := finite(r.summary.get("seconds"))) is not None]
        finished, planned = sorted({r.epochs for r in runs}), run.config.get("max_epochs")
        epochs = "–".join(map(str, finished))
        rows.append(
            [
                *(group.label, run.filter, exponent(run.config.get("p")) or "–", run.dataset),
                str(OmegaConf.select(run.config, "backbone.name", default="–")),
                global_batch(run),
                ", ".join(str(seed) for seed in sorted(r.seed for r in runs)),
                epochs if planned is None or finished == [planned] else f"{epochs} of {planned}",
                f"{statistics.fmean(times) / 60:.1f} min" if times else "–",
                ", ".join(sorted({str(r.summary.get("device", "–")) for r in runs})),
            ]
        )
        for run in runs:
            numbers = (run.summary.get("versions") or {}).items()
            text = ", ".join(f"{name} {number}" for name, number in numbers)
            versions[f"{text or 'versions unknown (no summary.json)'}."].append(run_name(run))
    filled = [i for i in range(len(head)) if any(row[i] != "–" for row in rows)]
    return Table(
        "The settings. Time is the mean wall time of a run, since it was last resumed.",
        [head[i] for i in filled],
        [[row[i] for i in filled] for row in rows],
        _named(versions, sum(len(group.runs) for group in groups)),
    )


def global_batch(run: Run) -> str:
    """Return the images of a batch, over all devices."""
    derived = run.summary.get("derived") or {}
    return str(derived.get("global_batch", run.config.get("batch_size", "–")))
