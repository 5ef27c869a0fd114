"""The paper's numbers beside those of runs with the paper's setting."""

from collections.abc import Sequence

from rdm_solo import cli, paper
from rdm_solo.messages import listed
from rdm_solo.report.measured import commonest, last, linear_accuracies
from rdm_solo.report.tables import Table, global_batch
from rdm_solo.runs.folder import Run
from rdm_solo.runs.groups import Group, counted_runs, mean_std
from rdm_solo.runs.settings import settings

PRINTED = ("online_predictors", "target_predictors", "imagenet", "byol", "alignment_cz_cplus")
# Parts of a config that are compared with the preset.
COMPARED = ("method", "filter", "dataset", "backbone", "optimizer", "scheduler", "batch_size")


def against_paper(groups: Sequence[Group]) -> Table:
    """Return the paper's numbers beside those of settings that the paper has."""
    head = ["setting", "data", "epochs", "what", "paper", "here", "n", "here differs in"]
    rows = [_beside(group, row) for group in groups for row in _rows_of(group)]
    notes = ["The paper prints single numbers, without seeds or standard deviations."]
    return Table("The paper's numbers beside those of the runs.", head, rows, notes)


def _rows_of(group: Group) -> list[paper.Row]:
    """Return the paper's rows with the data set, method, filter, p and epochs of finished runs."""
    run, planned = group.first, group.first.config.get("max_epochs")
    variant = "" if run.chosen_filter.absent else f"_{run.filter}"
    preset = f"experiment={run.dataset}/{run.method}{variant}"
    return [
        row
        for row in paper.rows()
        if (row.table in PRINTED and paper.preset(row)[0] == preset and row.p == run.p)
        and counted_runs(group)[0].epochs == planned
        and (row.metric == "alignment" or row.epochs in (planned, None))
    ]


def _beside(group: Group, row: paper.Row) -> list[str]:
    """Return one of the paper's numbers beside the setting's."""
    runs, differs = counted_runs(group), _differences(group.first, row)
    if row.metric == "alignment":
        column = "alignment/target_positive"
        here, what = last(runs, f"{column}_paper_m") or last(runs, column), "alignment with C₊"
    else:
        top = row.metric.replace("acc", "top")
        here, what = linear_accuracies(runs, top), f"linear {top.replace('top', 'top-')} %"
        if (evaluation := commonest(runs)) and evaluation.kind == "cached":
            differs.append("cached features, no augmentation")
    if row.epochs is None:
        differs.append("the paper prints no epochs")
    digits = 4 if row.metric == "alignment" else 2
    missing = "not measured" if row.metric == "alignment" else "run python -m rdm_solo.linear on it"
    epochs = row.epochs or group.first.config.get("max_epochs")
    setting = [group.label, group.first.dataset, str(epochs), what, f"{row.value:.{digits}f}"]
    number = mean_std(here, digits) if here else missing
    return [*setting, number, str(len(here)), "; ".join(differs) or "nothing known"]


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
