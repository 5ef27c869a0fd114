"""The report's tables: health, rankings, verdicts, last values, settings."""

import contextlib
import os
import shlex
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup
from omegaconf import OmegaConf

from rdm_solo.messages import finite, join_first
from rdm_solo.report import answers
from rdm_solo.report.measured import cells, last
from rdm_solo.report.ranking import Ranking, is_tied
from rdm_solo.report.verdicts import BOUNDS, dimensions, verdicts
from rdm_solo.runs import columns, files
from rdm_solo.runs.columns import COLUMNS, Column, compared
from rdm_solo.runs.files import OVERRIDES
from rdm_solo.runs.folder import Run
from rdm_solo.runs.groups import (
    Group,
    counted_runs,
    format_latest,
    judged_runs,
    mean_std,
    run_name,
    uncounted_runs,
)
from rdm_solo.runs.saved_config import exponent

RUN_COLUMNS = ("erank/online", "erank/target", "val/acc1", "val/knn_acc1")


class Table(NamedTuple):
    """A caption, column headings, rows whose first cell is a heading, and notes below."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


def health(groups: Sequence[Group]) -> Table:
    """Return each setting's health with the numbers that decide it."""
    head = ["setting", "is it alive?", "epochs", "n", "spread"]
    head += ["erank around the mean", "collapse below", "gap"]
    rows = []
    for group in groups:
        runs = counted_runs(group)
        k = max(map(dimensions, runs))
        row = [group.label, answers.health(group).answer, answers.progress(group), str(len(runs))]
        row += [mean_std(last(runs, "feature/spread"), 2), mean_std(last(runs, "erank/centred"), 2)]
        row += [f"{BOUNDS.min_rank(k):.2f} of {k}" if k else "–"]
        rows.append([*row, format_latest(runs, "erank/gap", 2)])
    return Table("Health of each setting: last values.", head, rows)


def ranking(ranked: Ranking) -> Table:
    """Return the settings in descending order, and how far each is behind the best."""
    first, digits = ranked.order[0], ranked.column.digits
    words = {True: "yes", False: "no", None: "unknown"}
    head = ["setting", ranked.column.label, "n", "range", "behind"]
    head += ["within one standard deviation?"]
    rows = []
    for setting in ranked.order:
        low, high = min(setting.values), max(setting.values)
        row = [setting.group.label, setting.text, str(len(setting.values))]
        row += [f"{low:.{digits}f} to {high:.{digits}f}", f"{first.mean - setting.mean:.{digits}f}"]
        rows.append([*row, "best" if setting is first else words[is_tied(first, setting)]])
    return Table(ranked.verdict.question, head, rows)


def last_values(groups: Sequence[Group]) -> list[Table]:
    """Return two tables of last values: columns that compare settings, and all others."""
    notes = [
        "Mean ± standard deviation over the n runs with the most epochs in each setting, in their "
        "last epoch unless another epoch is given. Linear accuracies come from "
        "python -m rdm_solo.linear run=FOLDER."
    ]
    if left_out := [f"{run_name(r)} ({r.progress})" for g in groups for r in uncounted_runs(g)]:
        notes.append(f"Not in the means: {join_first(left_out)}.")
    in_other_tables = [*compared(), *columns.measures()]
    others = [c for c in COLUMNS.values() if c.chart and c not in in_other_tables]
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
    return Table(caption, ["setting", "n", *(column.label for column in columns)], rows, notes)


def measures(groups: Sequence[Group]) -> list[Table]:
    """Return two tables of other rank measures: how to read each, and last values."""
    measured = [c for c in columns.measures() if any(group.last(c.name) for group in groups)]
    if not measured:
        return []
    note = (
        "docs/measures.md defines them and explains which one to use and why other packages' "
        "numbers differ. Compare only checkpoints and settings of one method: across methods the "
        "numbers also depend on projectors, dimensions and batches."
    )
    rows = [[column.label, column.meaning] for column in measured]
    explanations = Table("How to read each measure.", ["measure", "what it says"], rows, [note])
    return [explanations, _values("Last values.", groups, measured)]


def mechanism(groups: Sequence[Group]) -> Table:
    """Return whether each setting's target leads, and whether its filter is low-pass."""
    head = ["setting", "does the target lead?", "gap", "is the filter low-pass?", "curve"]
    rows = []
    caveats: dict[str, list[str]] = defaultdict(list)
    for group in groups:
        row = [group.label]
        for verdict in verdicts(judged_runs(group))[:2]:
            row += [verdict.answer, "; ".join(verdict.numbers)]
            caveats[verdict.caveat].append(group.label)
        rows.append(row)
    return Table("The verdicts on the mechanism.", head, rows, _named(caveats, len(groups)))


def _named(sentences: dict[str, list[str]], total: int) -> list[str]:
    """Return the sentences, each prefixed with its names unless it holds for all."""
    return [
        text if len(names) == total else f"{join_first(names)}: {text}"
        for text, names in sentences.items()
        if text
    ]


def all_runs(groups: Sequence[Group]) -> Table:
    """Return a row for each run with its own verdicts."""
    runs = [(group.label, run) for group in groups for run in group.runs]
    columns = [COLUMNS[name] for name in RUN_COLUMNS]
    head = ["run", "folder", "epochs", *(column.label for column in columns)]
    head += ["target leads?", "low-pass?", "alive?"]
    rows = []
    for (label, run), folder in zip(runs, relative([run.folder for _, run in runs])):
        code = Markup("<code>{}</code>").format(folder)
        row = [f"{label}, seed {run.seed}", code, str(run.epochs), *cells([run], columns)]
        rows.append([*row, *(verdict.answer for verdict in verdicts([run]))])
    return Table("Every run: its last values and its own verdicts.", head, rows)


def settings(groups: Sequence[Group]) -> Table:
    """Return each setting's data, network, batch, seeds, epochs, time and device."""
    head = ["setting", "filter", "p", "data", "network", "batch"]
    head += ["seeds", "epochs", "time", "device"]
    rows = []
    versions: dict[str, list[str]] = defaultdict(list)
    for group in groups:
        run, runs = group.first, group.runs
        seconds = [s for r in runs if (s := finite(r.summary.get("seconds"))) is not None]
        network = str(OmegaConf.select(run.config, "backbone.name", default="–"))
        row = [group.label, run.filter, exponent(run.config.get("p")) or "–", run.dataset, network]
        row += [global_batch(run), ", ".join(map(str, sorted(r.seed for r in runs)))]
        row += ["–".join(map(str, sorted({r.epochs for r in runs})))]
        row += [f"{statistics.fmean(seconds) / 60:.1f} min" if seconds else "–"]
        rows.append([*row, ", ".join(sorted({str(r.summary.get("device", "–")) for r in runs}))])
        for run in runs:
            numbers = (run.summary.get("versions") or {}).items()
            text = ", ".join(f"{name} {number}" for name, number in numbers)
            versions[f"{text or 'versions unknown (no summary.json)'}."].append(run_name(run))
    notes = _named(versions, sum(len(group.runs) for group in groups))
    caption = "The settings. Time is the mean wall time of a run since it was last resumed."
    return Table(caption, head, rows, notes)


def global_batch(run: Run) -> str:
    """Return the number of images in a batch over all devices, as text."""
    derived = run.summary.get("derived") or {}
    return str(derived.get("global_batch", run.config.get("batch_size", "–")))


def commands(group: Group) -> list[str]:
    """Return the commands that repeat a setting's runs; one command covers several seeds."""
    seeds: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for run in group.runs:
        with contextlib.suppress(OSError, ValueError):  # the file is missing or damaged
            options = map(str, files.read_yaml(run.folder, OVERRIDES))
            # Without the sweep's launcher, the command runs anywhere.
            rest = (o for o in options if not o.lstrip("+").startswith(("seed=", "launcher")))
            seeds[tuple(rest)].append(str(run.seed))
    lines = []
    for passed, numbers in seeds.items():
        multirun = ["-m"] if len(numbers) > 1 else []
        words = [*multirun, *passed, f"seed={','.join(sorted(numbers, key=int))}"]
        lines.append(shlex.join(["python", "-m", "rdm_solo.train", *words]))
    return lines


def relative(paths: Sequence[Path]) -> list[str]:
    """Return the paths relative to their common parent folder.

    >>> relative([Path("runs/byol/30"), Path("runs/swav/30")])
    ['byol/30', 'swav/30']
    """
    absolute = [Path(os.path.abspath(path)) for path in paths]
    shared = os.path.commonpath([path.parent for path in absolute])
    return [path.relative_to(shared).as_posix() for path in absolute]
