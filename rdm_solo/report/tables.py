"""The report's tables: what was run, last values over seeds, values against p, the paper's rows."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from rdm_solo import paper
from rdm_solo.plots.grouping import Group, behind, whole
from rdm_solo.report.places import relative
from rdm_solo.report.verdicts import spread, verdicts
from rdm_solo.runs.files import LINEAR, OVERRIDES
from rdm_solo.runs.folder import Run
from rdm_solo.runs.labels import exponent

__all__ = ["Table", "against_p", "against_paper", "commands", "each", "last_values", "ran"]

PRINTED = ("online_predictors", "target_predictors", "imagenet", "byol", "alignment_cz_cplus")
DATASETS = {row.dataset for row in paper.rows()}


@dataclass(frozen=True)
class Table:
    """A caption, the columns' heads, rows whose first cell is their head, and notes beneath."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = field(default_factory=list)


def linear(run: Run) -> tuple[str, dict[str, float]]:
    """The kind of features, and top1 and top5 of the run's linear evaluation over its seeds.

    The paper's protocol comes before cached features, the latest settings before older ones.
    """
    try:
        found = json.loads((run.folder / LINEAR).read_text())
        for kind in ("protocol", "cached"):
            entries = found.get(kind) or []
            entries = [entries] if isinstance(entries, dict) else entries
            if entries:
                last = entries[-1]
                alike = [entry for entry in entries if entry["protocol"] == last["protocol"]]
                return kind, {
                    top: float(np.mean([entry[top] for entry in alike])) for top in ("top1", "top5")
                }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return "", {}


def _top(runs: Sequence[Run], top: str = "top1") -> list[float]:
    return [found[top] for _, found in map(linear, runs) if top in found]


def _last(runs: Sequence[Run], column: str) -> list[float]:
    return [value for value in (run.last(column) for run in runs) if math.isfinite(value)]


def _first(runs: Sequence[Run], column: str) -> list[float]:
    columns = (run.metrics.get(column, np.empty(0)) for run in runs)
    return [float(v[np.isfinite(v)][0]) for v in columns if np.isfinite(v).any()]


def ran(groups: Sequence[Group]) -> Table:
    """What was run."""
    head = ["setting", "filter", "p", "data", "network", "batch", "seeds", "epochs", "time", "on"]
    rows = []
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
                _batch(run),
                ", ".join(str(seed) for seed in sorted(r.seed for r in runs)),
                str(asked) if done == [asked] else f"{'–'.join(map(str, done))} of {asked}",
                _seconds([r.summary.get("seconds") for r in runs]),
                ", ".join(sorted({str(r.summary.get("device", "?")) for r in runs})),
            ]
        )
    versions: dict[str, list[str]] = {}
    for run in (run for group in groups for run in group.runs):
        known = run.summary.get("versions") or {}
        text = ", ".join(f"{name} {number}" for name, number in known.items())
        versions.setdefault(text or "versions unknown (no summary.json)", []).append(_name(run))
    notes = [
        f"{text}." if len(versions) == 1 else f"{text}: {_few(names)}."
        for text, names in versions.items()
    ]
    return Table("What was run. Time is the mean wall time of a run.", head, rows, notes)


def _batch(run: Run) -> str:
    derived = run.summary.get("derived") or {}
    return str(derived.get("global_batch", run.config.get("batch_size", "?")))


def _seconds(values: Sequence[Any]) -> str:
    known = [float(value) for value in values if isinstance(value, (int, float))]
    if not known:
        return "–"
    mean = sum(known) / len(known)
    if mean < 120:
        return f"{mean:.0f} s"
    return f"{mean / 60:.0f} min" if mean < 7200 else f"{mean / 3600:.1f} h"


def commands(group: Group) -> list[str]:
    """The commands that repeat the group's runs; seeds that differ alone are one multirun."""
    found: dict[tuple[str, ...], list[str]] = {}
    for run in group.runs:
        overrides = _overrides(run.folder)
        if overrides is None:
            continue
        rest = tuple(o for o in overrides if not o.startswith(("seed=", "+seed=", "++seed=")))
        found.setdefault(rest, []).append(str(run.seed))
    lines = []
    for rest, seeds in found.items():
        sweep = ["-m"] if len(seeds) > 1 else []
        words = [*sweep, *rest, f"seed={','.join(sorted(seeds, key=int))}"]
        lines.append(" ".join(["python -m rdm_solo.train", *map(shlex.quote, words)]))
    return lines


def _overrides(folder: Path) -> list[str] | None:
    try:
        found = OmegaConf.to_container(OmegaConf.load(folder / OVERRIDES))
    except Exception:  # none kept, or not readable: no command can be told
        return None
    return [str(word) for word in found] if isinstance(found, list) else None


def last_values(groups: Sequence[Group]) -> list[Table]:
    """Last values of each setting, mean and standard deviation over its seeds."""
    ranks, rest = [], []
    for group in groups:
        runs = whole(group)
        start = [group.label, str(len(runs))]
        ranks.append(
            [
                *start,
                *(
                    f"{spread(_first(runs, name), 1)} → {spread(_last(runs, name), 1)}"
                    if _last(runs, name)
                    else "–"
                    for name in ("erank/online", "erank/target")
                ),
                spread(_last(runs, "erank/gap"), 2),
                spread(_last(runs, "erank/projection"), 1),
                spread(_last(runs, "feature/variance"), 3),
                spread(_last(runs, "train/loss"), 3),
            ]
        )
        rest.append(
            [
                *start,
                *(
                    spread(_last(runs, name), digits)
                    for name, digits in (
                        ("alignment/online_target", 2),
                        ("alignment/online_target_weighted", 2),
                        ("alignment/target_positive", 2),
                        ("filter/monotonicity", 2),
                        ("filter/monotonicity_directional", 2),
                        ("val/acc1", 1),
                        ("val/knn_acc1", 1),
                    )
                ),
                spread(_top(runs), 1),
            ]
        )
    notes = ["Mean ± standard deviation over the n runs that went furthest of their setting."]
    left = [_name(run) for group in groups for run in behind(group)]
    if left:
        notes.append(f"Behind the others of their setting and not in the means: {_few(left)}.")
    return [Table(RANKS, RANK_HEAD, ranks, notes), Table(REST, REST_HEAD, rest, [PROBED])]


RANKS = "Effective ranks (first → last epoch), gap, variance and loss at the end."
RANK_HEAD = (
    *("setting", "n", "erank online", "erank target", "gap", "erank projection"),
    *("variance", "loss"),
)
REST = "Alignment, monotonicity and accuracies (per cent) at the end."
REST_HEAD = (
    *("setting", "n", "align.", "weighted", "with C₊", "mono. sorted", "directional"),
    *("online acc.", "kNN", "linear"),
)
PROBED = "Linear accuracies are those that python -m rdm_solo.linear run=FOLDER has left."


def each(groups: Sequence[Group]) -> Table:
    """Every run with its verdicts."""
    head = ["run", "folder", "epochs", "erank online", "erank target", "online acc.", "kNN"]
    head += ["target leads?", "low-pass?", "collapsed?"]
    runs = [(group.label, run) for group in groups for run in group.runs]
    rows = []
    for (label, run), folder in zip(runs, relative([run.folder for _, run in runs])):
        numbers = ("erank/online", "erank/target", "val/acc1", "val/knn_acc1")
        rows.append(
            [
                f"{label}, seed {run.seed}",
                folder,
                str(run.epochs),
                *(spread(_last([run], name), 1) for name in numbers),
                *(verdict.answer for verdict in verdicts([run])),
            ]
        )
    return Table("Every run: its last values and the verdicts on it alone.", head, rows)


def against_p(groups: Sequence[Group]) -> list[Table]:
    """For filters that were run with several exponents: accuracy, rank and gap against p."""
    families: dict[tuple[str, str, str], list[Group]] = {}
    for group in groups:
        if group.first.p is not None:
            run = group.first
            families.setdefault((run.method, run.filter, run.dataset), []).append(group)
    tables = []
    for (_, name, dataset), members in families.items():
        if len({group.first.p for group in members}) < 2:
            continue
        rows = []
        for group in sorted(members, key=lambda g: g.first.p or 0.0):
            runs = whole(group)
            rows.append(
                [
                    f"{group.first.p:g}",
                    str(len(runs)),
                    spread(_last(runs, "val/acc1"), 1),
                    spread(_last(runs, "val/knn_acc1"), 1),
                    spread(_top(runs), 1),
                    *(
                        spread(_last(runs, f"erank/{column}"), 2)
                        for column in ("online", "target", "gap")
                    ),
                ]
            )
        head = ["p", "n", "online acc.", "kNN", "linear", "erank online", "erank target", "gap"]
        caption = f"{members[0].method}, filter {name}, on {dataset}: last values against p."
        tables.append(Table(caption, head, rows))
    return tables


def against_paper(groups: Sequence[Group]) -> tuple[Table | None, list[str]]:
    """The paper's numbers beside the runs' where the setting is the paper's; else why not."""
    rows: list[list[str]] = []
    reasons: dict[str, list[str]] = {}
    for group in groups:
        found = list(_beside(group))
        rows += found
        if not found:
            reasons.setdefault(_why_not(group), []).append(group.label)
    why = [f"{'; '.join(labels)}: {reason}" for reason, labels in reasons.items()]
    head = ["setting", "data", "epochs", "what", "paper", "here", "n", "here differs in"]
    notes = ["The paper prints single numbers, without seeds or spread."]
    return (
        Table("The paper's numbers beside those of the runs.", head, rows, notes) if rows else None
    ), why


def _named(run: Run) -> str:
    own = "" if run.filter == "none" else f"_{run.filter}"
    return f"experiment={run.dataset}/{run.method}{own}"


def _same_setting(run: Run) -> list[paper.Row]:
    """The paper's rows of that data set, method, filter and p, of any number of epochs."""
    return [
        row
        for row in paper.rows()
        if row.table in PRINTED and paper.preset(row)[0] == _named(run) and _same_p(row.p, run)
    ]


def _same_p(p: float | None, run: Run) -> bool:
    if run.config.get("p") is None:
        return p is None
    return p is not None and run.p is not None and math.isclose(p, run.p)


def _beside(group: Group) -> Iterator[list[str]]:
    run, runs = group.first, whole(group)
    asked = run.config.get("max_epochs")
    for row in _same_setting(run):
        aligned = row.metric == "alignment"
        if runs[0].epochs != asked or not (aligned or row.epochs in (asked, None)):
            continue
        if aligned:
            column = "alignment/target_positive_paper_m"
            column = column if _last(runs, column) else "alignment/target_positive"
            here, what = _last(runs, column), "alignment of C_z and C₊"
        else:
            top = {"acc1": "top1", "acc5": "top5"}[row.metric]
            here, what = _top(runs, top), f"linear {top.replace('top', 'top-')} %"
        kinds = {kind for kind, _ in map(linear, runs)} - {""}
        differs = _differences(run, row)
        if not aligned and kinds == {"cached"}:
            differs.append("cached features, no augmentation")
        if row.epochs is None:
            differs.append("the paper prints no epochs")
        digits = 4 if aligned else 2
        missing = "not measured" if aligned else "run python -m rdm_solo.linear on it"
        yield [
            *(group.label, run.dataset, str(row.epochs or asked), what),
            f"{row.value:.{digits}f}",
            *(spread(here, digits) if here else missing, str(len(here))),
            ", ".join(differs) or "nothing known",
        ]


def _why_not(group: Group) -> str:
    run = group.first
    if run.dataset not in DATASETS:
        return f"the paper has no numbers on {run.dataset}"
    rows = _same_setting(run)
    if not rows:
        p = f", p = {exponent(run.config.get('p'))}" if run.config.get("p") is not None else ""
        return f"the paper's tables have no {run.method} with {run.filter}{p} on {run.dataset}"
    epochs = ", ".join(str(e) for e in sorted({row.epochs for row in rows if row.epochs}))
    return (
        f"the paper's numbers are after {epochs} epochs, these runs have {whole(group)[0].epochs}"
    )


def _differences(run: Run, row: paper.Row) -> list[str]:
    """The settings in which a run differs from the preset of that row, four of them by name."""
    wanted = _preset(row)
    if wanted is None:
        return ["unknown (the preset cannot be read)"]
    here = _leaves(run.config)
    apart = [
        f"{name}={here.get(name)} (preset: {value})"
        for name, value in wanted.items()
        if name in here and here[name] != value
    ]
    batch, meant = _batch(run), str(wanted.get("batch_size"))
    if batch != meant and not any(word.startswith("batch_size=") for word in apart):
        apart.append(f"global batch {batch} (preset: {meant})")
    return apart[:4] + ([f"and {len(apart) - 4} more"] if len(apart) > 4 else [])


def _preset(row: paper.Row) -> dict[str, Any] | None:
    from hydra import compose, initialize_config_dir

    from rdm_solo import cli

    try:
        with initialize_config_dir(str(cli.config_folder()), version_base="1.3"):
            return _leaves(compose("config", overrides=paper.preset(row)))
    except Exception:  # hydra's and OmegaConf's: the comparison goes without
        return None


COMPARED = ("method", "filter", "backbone", "optimizer", "scheduler", "batch_size")
LOCAL = ("compile", "channels_last")


def _leaves(config: Any) -> dict[str, Any]:
    """The settings that make a run the paper's, under dotted names."""
    found: dict[str, Any] = {}

    def walk(prefix: str, node: Any) -> None:
        if isinstance(node, dict):
            for name, inner in node.items():
                walk(f"{prefix}.{name}", inner)
        elif prefix.rpartition(".")[2] not in LOCAL:
            found[prefix] = node

    try:
        plain: Any = OmegaConf.to_container(config, resolve=True)
    except Exception:  # an environment variable of another machine, say
        plain = OmegaConf.to_container(config)
    for name in COMPARED:
        walk(name, plain.get(name))
    for number, pipeline in enumerate((plain["dataset"].get("views") or {}).get("pipelines") or []):
        walk(f"view{number}", {k: v for k, v in pipeline.items() if not k.startswith("_")})
    return found


def _name(run: Run) -> str:
    return f"{run.label}, seed {run.seed}"


def _few(names: Sequence[str], most: int = 6) -> str:
    more = len(names) - most
    return "; ".join(names[:most]) + (f"; and {more} more" if more > 0 else "")
