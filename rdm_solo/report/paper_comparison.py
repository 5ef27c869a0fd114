"""Compare runs with the paper's numbers for the same setting."""

from collections.abc import Sequence

from rdm_solo import paper
from rdm_solo.cli import arguments
from rdm_solo.ground.errors import join_first
from rdm_solo.report.judged import Setting, linear_accuracies, most_common
from rdm_solo.report.tables import global_batch
from rdm_solo.runs import settings
from rdm_solo.runs.folder import Run
from rdm_solo.runs.groups import latest, mean_std

TABLES = ("online_predictors", "target_predictors", "imagenet", "byol", "alignment_cz_cplus")
COMPARED_KEYS = ("method", "filter", "dataset", "backbone", "optimizer", "scheduler", "batch_size")
ALIGNMENT = "alignment/target_positive"


def paper_rows(settings: Sequence[Setting]) -> list[dict[str, str]]:
    """Return the paper's numbers beside those measured with the same setting."""
    rows = []
    for setting in settings:
        for row in _paper_rows(setting):
            rows.append(_compare(setting, row))
    return rows


def _paper_rows(setting: Setting) -> list[paper.Row]:
    """Return the paper's rows for a finished setting: equal data, method, filter, p and epochs."""
    run = setting.counted[0]
    if run.epochs != run.config.get("max_epochs"):
        return []
    variant = "" if run.chosen_filter.absent else f"_{run.filter}"
    preset = f"experiment={run.dataset}/{run.method}{variant}"
    rows = []
    for row in paper.rows():
        if row.table not in TABLES or paper.preset(row)[0] != preset or row.p != run.p:
            continue
        if row.metric == "alignment" or row.epochs in (run.epochs, None):
            rows.append(row)
    return rows


def _compare(setting: Setting, row: paper.Row) -> dict[str, str]:
    """Return a table row with a number of the paper beside the setting's number."""
    runs = setting.counted
    differences = _differences(setting.group.first, row)
    if row.metric == "alignment":
        measure, digits, missing = "alignment with C₊", 4, "not measured"
        _, values = latest(runs, f"{ALIGNMENT}_paper_m")
        if not values:
            _, values = latest(runs, ALIGNMENT)
    else:
        top = row.metric.removeprefix("acc")
        measure, digits, missing = f"linear top-{top} %", 2, "run rdm-solo linear on it"
        evaluation = most_common(runs)
        values = linear_accuracies(runs, evaluation, f"top{top}")
        if evaluation and evaluation.kind == "cached":
            differences.append("cached features, no augmentation")
    if row.epochs is None:
        differences.append("the paper does not report the epochs")
    return {
        "setting": setting.label,
        "data": runs[0].dataset,
        "epochs": str(row.epochs or runs[0].epochs),
        "measure": measure,
        "paper": f"{row.value:.{digits}f}",
        "runs": mean_std(values, digits) if values else missing,
        "n": str(len(values)),
        "differences": "; ".join(differences) or "none known",
    }


def _differences(run: Run, row: paper.Row) -> list[str]:
    """Return the options in which a run differs from the preset of the paper's row."""
    options = settings.settings(run.config, COMPARED_KEYS)
    preset = settings.settings(arguments.compose("config", paper.preset(row)), COMPARED_KEYS)
    differences = []
    for name, value in preset.items():
        if options.get(name, value) != value:
            differences.append(f"{name}={options[name]} (preset: {value})")
    batch = preset["batch_size"]
    if global_batch(run) != str(batch) and options.get("batch_size") == batch:
        differences.append(f"global batch {global_batch(run)} (preset: {batch})")
    return [join_first(differences)] if differences else []
