"""The report's tables: what was run, last values over seeds, and last values against p."""

import shlex
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup
from omegaconf import OmegaConf

from rdm_solo.messages import finite, listed
from rdm_solo.report.measured import cells
from rdm_solo.report.typesetting import relative
from rdm_solo.report.verdicts import verdicts
from rdm_solo.runs import reading
from rdm_solo.runs.columns import COLUMNS, Column, compared
from rdm_solo.runs.files import OVERRIDES
from rdm_solo.runs.folder import Run
from rdm_solo.runs.groups import Group, counted_runs, run_name, runs_behind, so_far
from rdm_solo.runs.labels import exponent

OF_ONE_RUN = ("erank/online", "erank/target", "val/acc1", "val/knn_acc1")


class Table(NamedTuple):
    """A caption, the columns' heads, rows whose first cell is their head, and notes beneath."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


def ran(groups: Sequence[Group]) -> Table:
    """What was run."""
    head = ["setting", "filter", "p", "data", "network", "batch", "seeds", "epochs", "time", "on"]
    rows = []
    versions: dict[str, list[str]] = defaultdict(list)
    for group in groups:
        run, runs = group.first, group.runs
        done = sorted({r.epochs for r in runs})
        epochs = "–".join(map(str, done))
        asked = run.config.get("max_epochs")  # which a loop of somebody's own need not say
        rows.append(
            [
                group.label,
                run.filter,
                exponent(run.config.get("p")) or "–",
                run.dataset,
                str(OmegaConf.select(run.config, "backbone.name", default="?")),
                global_batch(run),
                ", ".join(str(seed) for seed in sorted(r.seed for r in runs)),
                epochs if asked is None or done == [asked] else f"{epochs} of {asked}",
                _mean_time(runs),
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
    caption = (
        "The settings of the runs. Time is the mean wall time of a run; of one that was resumed, "
        "since then."
    )
    return Table(caption, head, rows, notes)


def global_batch(run: Run) -> str:
    """Images of a batch, over all devices."""
    derived = run.summary.get("derived") or {}
    return str(derived.get("global_batch", run.config.get("batch_size", "?")))


def _mean_time(runs: Sequence[Run]) -> str:
    known = [seconds for run in runs if (seconds := finite(run.summary.get("seconds"))) is not None]
    return f"{statistics.fmean(known) / 60:.1f} min" if known else "–"


def commands(group: Group) -> list[str]:
    """The commands that repeat the group's runs; seeds that differ alone are one multirun."""
    found: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for run in group.runs:
        try:
            overrides = reading.read_yaml(run.folder, OVERRIDES)
        except Exception:  # none kept, or not readable: the command is not known
            continue
        if isinstance(overrides, list):  # an empty file is a mapping
            typed = map(str, overrides)
            rest = (word for word in typed if _option(word) not in ("seed", "launcher"))
            found[tuple(rest)].append(str(run.seed))
    lines = []
    for seedless, seeds in found.items():
        sweep = ["-m"] if len(seeds) > 1 else []
        words = [*sweep, *seedless, f"seed={','.join(sorted(seeds, key=int))}"]
        lines.append(shlex.join(["python", "-m", "rdm_solo.train", *words]))
    return lines


def _option(word: str) -> str:
    """The option that a word sets, or the section of it.

    >>> _option("++launcher.jobs=2"), _option("seed=1")
    ('launcher', 'seed')
    """
    return word.lstrip("+").partition("=")[0].partition(".")[0]


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
    others = [c for c in COLUMNS.values() if c.chart and not c.compared]
    return [
        _values("Last values; accuracies in per cent.", "setting", members, compared(), notes),
        _values("Last values of what else is charted.", "setting", members, others),
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
