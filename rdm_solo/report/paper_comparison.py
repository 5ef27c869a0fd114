"""The paper's numbers beside those of runs with the paper's setting."""

import math
from collections.abc import Iterator, Sequence

from rdm_solo import cli, paper
from rdm_solo.messages import listed
from rdm_solo.report.evaluations import common
from rdm_solo.report.measured import last, linear_accuracies
from rdm_solo.report.tables import Table, global_batch
from rdm_solo.runs.folder import Run
from rdm_solo.runs.groups import Group, counted_runs, spread
from rdm_solo.runs.settings import settings

PRINTED = ("online_predictors", "target_predictors", "imagenet", "byol", "alignment_cz_cplus")
# Parts of a config that are compared with the preset.
COMPARED = ("method", "filter", "dataset", "backbone", "optimizer", "scheduler", "batch_size")


def against_paper(groups: Sequence[Group]) -> Table:
    """Return the paper's numbers beside those of settings that the paper has."""
    head = ["setting", "data", "epochs", "what", "paper", "here", "n", "here differs in"]
    rows = [row for group in groups for row in _beside(group)]
    notes = ["The paper prints single numbers, without seeds or standard deviations."]
    return Table("The paper's numbers beside those of the runs.", head, rows, notes)


def _same_setting(run: Run) -> list[paper.Row]:
    """Return the paper's rows with that data set, method, filter and p, for any epochs."""
    variant = "" if run.chosen_filter.absent else f"_{run.filter}"
    preset = f"experiment={run.dataset}/{run.method}{variant}"
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
    """Yield a table row for each of the paper's numbers that the setting compares with."""
    run, runs = group.first, counted_runs(group)
    planned = run.config.get("max_epochs")
    for row in _same_setting(run):
        aligned = row.metric == "alignment"
        if runs[0].epochs != planned or not (aligned or row.epochs in (planned, None)):
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
            *(group.label, run.dataset, str(row.epochs or planned), what),
            *(f"{row.value:.{digits}f}", spread(here, digits) if here else missing),
            *(str(len(here)), "; ".join(differs) or "nothing known"),
        ]


def _differences(run: Run, row: paper.Row) -> list[str]:
    """Return the options in which a run differs from the row's preset."""
    here = settings(run.config, COMPARED)
    preset = settings(cli.compose("config", paper.preset(row)), COMPARED)
    differing = [
        f"{name}={here[name]} (preset: {value})"
        for name, value in preset.items()
        if name in here and here[name] != value and not name.rpartition(".")[2].startswith("_")
    ]
    batch = preset["batch_size"]
    if global_batch(run) != str(batch) and here.get("batch_size") == batch:
        differing.append(f"global batch {global_batch(run)} (preset: {batch})")
    return [listed(differing)] if differing else []
