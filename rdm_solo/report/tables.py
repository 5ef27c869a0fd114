"""The report's tables: what was run, last values over seeds, and last values against p."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rdm_solo.report.measured import change, last, linear_accuracies, spread
from rdm_solo.report.typesetting import relative
from rdm_solo.report.verdicts import verdicts
from rdm_solo.runs.files import OVERRIDES
from rdm_solo.runs.folder import Run
from rdm_solo.runs.groups import Group, counted_runs, listed, run_name, runs_behind
from rdm_solo.runs.labels import exponent

__all__ = ["Table", "against_p", "commands", "each", "global_batch", "last_values", "ran"]

# Columns that hold words even where every cell reads like a number.
WORDS = ("filter", "folder", "network", "on", "here differs in", "what", "data", "seeds")
NUMBER = re.compile(r"[-–\d.,± →%a-z]{0,24}$")

# Columns of metrics.csv, with the digits that are shown.
Columns = Mapping[str, int]
RANKS: Columns = {
    "erank/gap": 2,
    "erank/projection": 1,
    "feature/variance": 3,
    "train/loss": 3,
}
OTHERS: Columns = {
    "alignment/online_target": 2,
    "alignment/online_target_weighted": 2,
    "alignment/target_positive": 2,
    "filter/monotonicity": 2,
    "filter/monotonicity_directional": 2,
    "val/acc1": 1,
    "val/knn_acc1": 1,
}
OF_ONE_RUN: Columns = {
    "erank/online": 1,
    "erank/target": 1,
    "val/acc1": 1,
    "val/knn_acc1": 1,
}
ACCURACIES: Columns = {"val/acc1": 1, "val/knn_acc1": 1}
BRANCHES: Columns = {"erank/online": 2, "erank/target": 2, "erank/gap": 2}


@dataclass(frozen=True)
class Table:
    """A caption, the columns' heads, rows whose first cell is their head, and notes beneath."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = field(default_factory=list)

    @property
    def words(self) -> list[bool]:
        """Which columns hold words, which are set left and may break."""
        return [
            name in WORDS
            or name.endswith("?")
            or not all(NUMBER.match(row[i]) for row in self.rows)
            for i, name in enumerate(self.head)
        ]


def _cells(runs: Sequence[Run], columns: Columns) -> list[str]:
    return [spread(last(runs, column), digits) for column, digits in columns.items()]


def ran(groups: Sequence[Group]) -> Table:
    """What was run."""
    head = ["setting", "filter", "p", "data", "network", "batch", "seeds", "epochs", "time", "on"]
    rows = []
    versions: dict[str, list[str]] = defaultdict(list)
    for group in groups:
        run, runs = group.first, group.runs
        done = sorted({r.epochs for r in runs})
        asked = run.config.get("max_epochs", "?")
        rows.append(
            [
                group.label,
                run.filter,
                exponent(run.config.get("p")) or "–",
                run.dataset,
                str(OmegaConf.select(run.config, "backbone.name", default="?")),
                global_batch(run),
                ", ".join(str(seed) for seed in sorted(r.seed for r in runs)),
                str(asked) if done == [asked] else f"{'–'.join(map(str, done))} of {asked}",
                _mean_time([r.summary.get("seconds") for r in runs]),
                ", ".join(sorted({str(r.summary.get("device", "?")) for r in runs})),
            ]
        )
        for run in runs:
            known = run.summary.get("versions") or {}
            text = ", ".join(f"{name} {number}" for name, number in known.items())
            versions[text or "versions unknown (no summary.json)"].append(run_name(run))
    notes = [
        f"{text}." if len(versions) == 1 else f"{text}: {listed(names)}."
        for text, names in versions.items()
    ]
    return Table(
        "The settings of the runs. Time is the mean wall time of a run.", head, rows, notes
    )


def global_batch(run: Run) -> str:
    """Images of a batch, over all devices."""
    derived = run.summary.get("derived") or {}
    return str(derived.get("global_batch", run.config.get("batch_size", "?")))


def _mean_time(values: Sequence[Any]) -> str:
    known = [float(value) for value in values if isinstance(value, (int, float))]
    if not known:
        return "–"
    mean = sum(known) / len(known)
    if mean < 120:
        return f"{mean:.0f} s"
    return f"{mean / 60:.0f} min" if mean < 7200 else f"{mean / 3600:.1f} h"


def commands(group: Group) -> list[str]:
    """The commands that repeat the group's runs; seeds that differ alone are one multirun."""
    found: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for run in group.runs:
        overrides = _overrides(run.folder)
        if overrides is not None:
            seedless = (o for o in overrides if not o.startswith(("seed=", "+seed=", "++seed=")))
            found[tuple(seedless)].append(str(run.seed))
    lines = []
    for rest, seeds in found.items():
        sweep = ["-m"] if len(seeds) > 1 else []
        words = [*sweep, *rest, f"seed={','.join(sorted(seeds, key=int))}"]
        lines.append(" ".join(["python -m rdm_solo.train", *map(shlex.quote, words)]))
    return lines


def _overrides(folder: Path) -> list[str] | None:
    try:
        found = OmegaConf.to_container(OmegaConf.load(folder / OVERRIDES))
    except Exception:  # none kept, or not readable: the command is not known
        return None
    return [str(word) for word in found] if isinstance(found, list) else None


def last_values(groups: Sequence[Group]) -> list[Table]:
    """Last values of each setting, mean and standard deviation over its seeds."""
    ranks, others = [], []
    for group in groups:
        runs = counted_runs(group)
        start = [group.label, str(len(runs))]
        branches = (change(runs, f"erank/{branch}") for branch in ("online", "target"))
        ranks.append([*start, *branches, *_cells(runs, RANKS)])
        others.append([*start, *_cells(runs, OTHERS), spread(linear_accuracies(runs), 1)])
    notes = ["Mean ± standard deviation over the n runs with the most epochs in each setting."]
    left = [run_name(run) for group in groups for run in runs_behind(group)]
    if left:
        notes.append(f"With fewer epochs, and not in the means: {listed(left)}.")
    return [
        Table(
            "Effective ranks (first → last epoch), gap, variance and loss at the end.",
            [
                *("setting", "n", "erank online", "erank target", "gap", "erank projection"),
                *("variance", "loss"),
            ],
            ranks,
            notes,
        ),
        Table(
            "Alignment, monotonicity and accuracies (per cent) at the end.",
            [
                *("setting", "n", "alignment plain", "weighted", "with C₊"),
                *("monotonicity sorted", "directional"),
                *("online acc.", "kNN", "linear"),
            ],
            others,
            ["Linear accuracies are those of python -m rdm_solo.linear run=FOLDER."],
        ),
    ]


def each(groups: Sequence[Group]) -> Table:
    """Every run with its verdicts."""
    runs = [(group.label, run) for group in groups for run in group.runs]
    folders = relative([run.folder for _, run in runs])
    rows = [
        [
            *(f"{label}, seed {run.seed}", folder, str(run.epochs)),
            *_cells([run], OF_ONE_RUN),
            *(verdict.answer for verdict in verdicts([run])),
        ]
        for (label, run), folder in zip(runs, folders)
    ]
    head = ["run", "folder", "epochs", "erank online", "erank target", "online acc.", "kNN"]
    head += ["target leads?", "low-pass?", "collapsed?"]
    return Table("Every run: its last values and the verdicts on it alone.", head, rows)


def against_p(groups: Sequence[Group]) -> list[Table]:
    """For filters that were run with several exponents: accuracy, rank and gap against p."""
    families: dict[tuple[str, str, str], list[tuple[float, Group]]] = defaultdict(list)
    for group in groups:
        run = group.first
        if run.p is not None:
            families[group.method, run.filter, run.dataset].append((run.p, group))
    head = ["p", "n", "online acc.", "kNN", "linear", "erank online", "erank target", "gap"]
    tables = []
    for (method, name, dataset), members in families.items():
        if len({p for p, _ in members}) < 2:
            continue
        rows = []
        for p, group in sorted(members, key=lambda member: member[0]):
            runs = counted_runs(group)
            accuracies = [*_cells(runs, ACCURACIES), spread(linear_accuracies(runs), 1)]
            rows.append([f"{p:g}", str(len(runs)), *accuracies, *_cells(runs, BRANCHES)])
        caption = f"{method}, filter {name}, on {dataset}: last values against p."
        tables.append(Table(caption, head, rows))
    return tables
