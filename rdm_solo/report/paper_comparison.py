"""Compare runs with the paper's numbers for the same setting."""

from collections.abc import Sequence

from rdm_solo import paper
from rdm_solo.cli import arguments
from rdm_solo.ground.errors import join_first
from rdm_solo.report.measured import last, linear_accuracies, most_common
from rdm_solo.report.tables import Table, global_batch
from rdm_solo.runs.folder import Run
from rdm_solo.runs.groups import Group, counted_runs, mean_std
from rdm_solo.runs.settings import settings

TABLES = ("online_predictors", "target_predictors", "imagenet", "byol", "alignment_cz_cplus")
COMPARED_KEYS = ("method", "filter", "dataset", "backbone", "optimizer", "scheduler", "batch_size")


def paper_table(groups: Sequence[Group]) -> Table:
    """Return a table of the paper's numbers beside those measured with the same setting."""
    head = ["setting", "data", "epochs", "measure", "paper", "runs", "n", "differences"]
    rows = [_compare(group, row) for group in groups for row in _paper_rows(group)]
    notes = ["The paper reports single numbers, without seeds or standard deviations."]
    return Table("The paper's numbers beside the runs' numbers", head, rows, notes)


def _paper_rows(group: Group) -> list[paper.Row]:
    """Return the paper's rows for a finished setting: equal data, method, filter, p and epochs."""
    run, planned = group.first, group.first.config.get("max_epochs")
    variant = "" if run.chosen_filter.absent else f"_{run.filter}"
    preset = f"experiment={run.dataset}/{run.method}{variant}"
    return [
        row
        for row in paper.rows()
        if (row.table in TABLES and paper.preset(row)[0] == preset and row.p == run.p)
        and counted_runs(group)[0].epochs == planned
        and (row.metric == "alignment" or row.epochs in (planned, None))
    ]


def _compare(group: Group, row: paper.Row) -> list[str]:
    """Return a table row with a number of the paper beside the setting's number."""
    runs, differences = counted_runs(group), _differences(group.first, row)
    if row.metric == "alignment":
        column = "alignment/target_positive"
        values, measure = last(runs, f"{column}_paper_m") or last(runs, column), "alignment with C₊"
    else:
        top = row.metric.replace("acc", "top")
        values, measure = linear_accuracies(runs, top), f"linear {top.replace('top', 'top-')} %"
        if (evaluation := most_common(runs)) and evaluation.kind == "cached":
            differences.append("cached features, no augmentation")
    if row.epochs is None:
        differences.append("the paper does not report the epochs")
    digits = 4 if row.metric == "alignment" else 2
    missing = "not measured" if row.metric == "alignment" else "run rdm-solo linear on it"
    epochs = row.epochs or group.first.config.get("max_epochs")
    setting = [group.label, group.first.dataset, str(epochs), measure, f"{row.value:.{digits}f}"]
    number = mean_std(values, digits) if values else missing
    return [*setting, number, str(len(values)), "; ".join(differences) or "none known"]


def _differences(run: Run, row: paper.Row) -> list[str]:
    """Return the options in which a run differs from the preset of the paper's row."""
    options = settings(run.config, COMPARED_KEYS)
    preset = settings(arguments.compose("config", paper.preset(row)), COMPARED_KEYS)
    differences = [
        f"{name}={options[name]} (preset: {value})"
        for name, value in preset.items()
        if options.get(name, value) != value and not name.rpartition(".")[2].startswith("_")
    ]
    batch = preset["batch_size"]
    if global_batch(run) != str(batch) and options.get("batch_size") == batch:
        differences.append(f"global batch {global_batch(run)} (preset: {batch})")
    return [join_first(differences)] if differences else []
