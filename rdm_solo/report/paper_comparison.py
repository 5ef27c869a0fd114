"""The paper's numbers beside those of runs with the paper's setting."""

import math
from collections.abc import Iterator, Sequence

from rdm_solo import cli, paper
from rdm_solo.messages import listed
from rdm_solo.report.evaluations import common
from rdm_solo.report.measured import last, linear_accuracies
from rdm_solo.report.tables import Table
from rdm_solo.report.what_ran import global_batch
from rdm_solo.runs.folder import Run
from rdm_solo.runs.groups import Group, counted_runs, spread
from rdm_solo.runs.labels import exponent
from rdm_solo.runs.settings import settings

PRINTED = ("online_predictors", "target_predictors", "imagenet", "byol", "alignment_cz_cplus")
# Parts of a config that are compared with the preset.
COMPARED = ("method", "filter", "dataset", "backbone", "optimizer", "scheduler", "batch_size")


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
    table = Table("The paper's numbers beside those of the runs.", head, rows, notes)
    return table if rows else None, why


def _same_setting(run: Run) -> list[paper.Row]:
    """The paper's rows of that data set, method, filter and p, of any number of epochs."""
    own = "" if run.chosen_filter.absent else f"_{run.filter}"
    preset = f"experiment={run.dataset}/{run.method}{own}"
    return [
        row
        for row in paper.rows()
        if row.table in PRINTED and paper.preset(row)[0] == preset and _same_p(row.p, run)
    ]


def _same_p(p: float | None, run: Run) -> bool:
    if run.config.get("p") is None:
        return p is None
    return p is not None and run.p is not None and math.isclose(p, run.p)


def _beside(group: Group) -> Iterator[list[str]]:
    run, runs = group.first, counted_runs(group)
    asked = run.config.get("max_epochs")
    for row in _same_setting(run):
        aligned = row.metric == "alignment"
        if runs[0].epochs != asked or not (aligned or row.epochs in (asked, None)):
            continue
        differs = _differences(run, row)
        if aligned:
            column = "alignment/target_positive"
            here, what = last(runs, f"{column}_paper_m") or last(runs, column), "alignment with C₊"
        else:
            top = row.metric.replace("acc", "top")
            here, what = linear_accuracies(runs, top), f"linear {top.replace('top', 'top-')} %"
            if (evaluated := common(runs)) and evaluated.kind == "cached":
                differs.append("cached features, no augmentation")
        if row.epochs is None:
            differs.append("the paper prints no epochs")
        digits = 4 if aligned else 2
        missing = "not measured" if aligned else "run python -m rdm_solo.linear on it"
        yield [
            *(group.label, run.dataset, str(row.epochs or asked), what),
            *(f"{row.value:.{digits}f}", spread(here, digits) if here else missing),
            *(str(len(here)), "; ".join(differs) or "nothing known"),
        ]


def _why_not(group: Group) -> str:
    run = group.first
    if run.dataset not in {row.dataset for row in paper.rows()}:
        return f"the paper has no numbers on {run.dataset}"
    rows = _same_setting(run)
    if not rows:
        p = f", p = {exponent(run.config.get('p'))}" if run.config.get("p") is not None else ""
        return f"the paper's tables have no {run.method} with {run.filter}{p} on {run.dataset}"
    epochs = ", ".join(str(e) for e in sorted({row.epochs for row in rows if row.epochs}))
    done = counted_runs(group)[0].epochs
    return f"the paper's numbers are after {epochs} epochs, these runs have {done}"


def _differences(run: Run, row: paper.Row) -> list[str]:
    """The options in which a run differs from the preset of that row."""
    here = settings(run.config, COMPARED)
    wanted = settings(cli.compose("config", paper.preset(row)), COMPARED)
    apart = [
        f"{name}={here[name]} (preset: {value})"
        for name, value in wanted.items()
        if name in here and here[name] != value and not name.rpartition(".")[2].startswith("_")
    ]
    meant = wanted["batch_size"]
    if global_batch(run) != str(meant) and here.get("batch_size") == meant:
        apart.append(f"global batch {global_batch(run)} (preset: {meant})")
    return [listed(apart)] if apart else []
