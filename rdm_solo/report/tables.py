"""The report's tables: health, verdicts, last values, measures, runs, settings."""

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

from rdm_solo.ground.errors import join_first
from rdm_solo.ground.values import finite
from rdm_solo.report import answers
from rdm_solo.report.measured import cells, last
from rdm_solo.report.verdicts import Verdict, verdicts
from rdm_solo.runs import columns, files
from rdm_solo.runs.columns import ACCURACY, COLUMNS, LINEAR, Column, charts
from rdm_solo.runs.files import OVERRIDES
from rdm_solo.runs.folder import Run
from rdm_solo.runs.groups import (
    Group,
    counted_runs,
    judged_runs,
    run_name,
    uncounted_runs,
)
from rdm_solo.runs.saved_config import exponent

ACCURACIES = charts()[ACCURACY][::-1]
RUN_COLUMNS = [*ACCURACIES, COLUMNS["erank/target"], COLUMNS["erank/online"]]
OVERVIEW = [LINEAR, *RUN_COLUMNS]
OVERVIEW += [COLUMNS[name] for name in ("erank/gap", "erank/centred", "train/loss")]


class Table(NamedTuple):
    """A caption, column headings, rows whose first cell is a heading, and notes below."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


def overview(groups: Sequence[Group]) -> Table:
    """Return each setting's health and last values, the accuracies first."""
    rows = []
    columns = _measured(groups, OVERVIEW)
    for group in groups:
        runs = counted_runs(group)
        row = [group.label, coloured(answers.health(group)), str(len(runs)), *cells(runs, columns)]
        rows.append(row)
    head = ["setting", "is it alive?", "n", *(_head(column) for column in columns)]
    several = any(row[2] != "1" for row in rows)
    notes = ["Last values: mean ± standard deviation over n runs."] if several else []
    if left_out := [f"{run_name(r)} ({r.progress})" for g in groups for r in uncounted_runs(g)]:
        notes.append(f"Not in the means, because they have fewer epochs: {join_first(left_out)}.")
    return Table("Health and last values of each setting", head, rows, notes)


def _head(column: Column) -> str:
    return f"{column.label} (%)" if column.chart == ACCURACY else column.label


def _measured(groups: Sequence[Group], columns: Sequence[Column]) -> list[Column]:
    """Return the columns that have a value in at least one setting."""
    return [c for c in columns if any(last(counted_runs(group), c.name) for group in groups)]


def coloured(verdict: Verdict) -> Markup:
    """Return a verdict's answer in the colour of its level."""
    return Markup('<span class="{}">{}</span>').format(verdict.level, verdict.answer)


def other_values(groups: Sequence[Group]) -> Table:
    """Return the last values of the charted columns that no other table has."""
    in_other_tables = [*OVERVIEW, *columns.measures()]
    others = [c for c in COLUMNS.values() if c.chart and c not in in_other_tables]
    others = _measured(groups, others)
    values = [cells(counted_runs(group), others) for group in groups]
    rows = [[_head(column), *numbers] for column, *numbers in zip(others, *values)]
    return Table("Other last values", ["value", *(group.label for group in groups)], rows)


def measures(groups: Sequence[Group]) -> Table:
    """Return the other measures of rank: how to read each, and its last values."""
    note = (
        "docs/measures.md defines them and explains which one to use and why other packages' "
        "numbers differ. Compare only checkpoints and settings of one method: across methods the "
        "numbers also depend on projectors, dimensions and batches."
    )
    rows = [
        [column.label, column.meaning, *(cells(counted_runs(g), [column])[0] for g in groups)]
        for column in _measured(groups, columns.measures())
    ]
    head = ["measure", "what it says", *(group.label for group in groups)]
    return Table("Last values of other measures of rank", head, rows, [note])


def judgements(groups: Sequence[Group]) -> Table:
    """Return the three verdicts on each setting with their numbers."""
    head = ["setting", "is it alive?", "numbers", "does the target lead?", "numbers"]
    head += ["is the filter low-pass?", "numbers"]
    rows = []
    caveats: dict[str, list[str]] = defaultdict(list)
    for group in groups:
        row: list[str] = [group.label]
        for verdict in (answers.health(group), *verdicts(judged_runs(group))[:2]):
            row += [coloured(verdict), "; ".join(verdict.numbers) or "–"]
            if verdict.caveat:
                caveats[verdict.caveat].append(group.label)
        rows.append(row)
    return Table("The verdicts and their numbers", head, rows, _named(caveats, len(groups)))


def _named(sentences: dict[str, list[str]], total: int) -> list[str]:
    """Return the sentences, each prefixed with its names unless it holds for all."""
    return [
        text if len(names) == total else f"{join_first(names)}: {text}"
        for text, names in sentences.items()
    ]


def all_runs(groups: Sequence[Group]) -> Table:
    """Return a row for each run with its own verdicts."""
    runs = [(group.label, run) for group in groups for run in group.runs]
    columns = _measured(groups, RUN_COLUMNS)
    head = ["run", "folder", "epochs", *map(_head, columns)]
    head += ["target leads?", "low-pass?", "alive?"]
    rows = []
    for (label, run), folder in zip(runs, relative([run.folder for _, run in runs])):
        code = Markup("<code>{}</code>").format(folder)
        row = [f"{label}, seed {run.seed}", code, str(run.epochs), *cells([run], columns)]
        rows.append([*row, *map(coloured, verdicts([run]))])
    return Table("Every run, with its own last values and verdicts", head, rows)


def settings(groups: Sequence[Group]) -> Table:
    """Return each setting's data, network, batch, seeds, epochs, time and device."""
    head = ["setting", "filter", "p", "data", "seeds", "epochs"]
    head += ["network", "batch", "time", "device"]
    rows = []
    versions: dict[str, list[str]] = defaultdict(list)
    for group in groups:
        run, runs = group.first, group.runs
        seconds = [s for r in runs if (s := finite(r.summary.get("seconds"))) is not None]
        network = str(OmegaConf.select(run.config, "backbone.name", default="–"))
        row = [group.label, run.filter, exponent(run.config.get("p")) or "–", run.dataset]
        row += [", ".join(map(str, sorted(r.seed for r in runs)))]
        row += ["–".join(map(str, sorted({r.epochs for r in runs}))), network, global_batch(run)]
        row += [f"{statistics.fmean(seconds) / 60:.1f} min" if seconds else "–"]
        rows.append([*row, ", ".join(sorted({str(r.summary.get("device", "–")) for r in runs}))])
        for run in runs:
            numbers = (run.summary.get("versions") or {}).items()
            text = ", ".join(f"{name} {number}" for name, number in numbers)
            versions[f"{text or 'versions unknown (no summary.json)'}."].append(run_name(run))
    notes = _named(versions, sum(len(group.runs) for group in groups))
    notes.insert(0, "Time is the mean wall time of a run since it was last resumed.")
    return Table("The settings", head, rows, notes)


def machine(groups: Sequence[Group]) -> Table:
    """Return the settings' network, batch, time and device."""
    table = settings(groups)
    return Table("What was run", table.head[6:], [row[6:] for row in table.rows], table.notes)


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
        lines.append(shlex.join(["rdm-solo", "train", *words]))
    return lines


def relative(paths: Sequence[Path]) -> list[str]:
    """Return the paths relative to their common parent folder.

    >>> relative([Path("runs/byol/30"), Path("runs/swav/30")])
    ['byol/30', 'swav/30']
    """
    absolute = [Path(os.path.abspath(path)) for path in paths]
    shared = os.path.commonpath([path.parent for path in absolute])
    return [path.relative_to(shared).as_posix() for path in absolute]
