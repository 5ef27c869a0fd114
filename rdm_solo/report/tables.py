"""The contents of the report's tables: columns, caveats, what was run, and the paper's numbers."""

import contextlib
import os
import shlex
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rdm_solo import paper
from rdm_solo.cli import arguments
from rdm_solo.ground.errors import join_first
from rdm_solo.methods.chosen_filter import exponent
from rdm_solo.report.judged import (
    ACCURACIES,
    EPOCH_ACCURACIES,
    Setting,
    linear_accuracies,
    most_common,
)
from rdm_solo.runs import columns, files
from rdm_solo.runs.columns import COLUMNS, Column
from rdm_solo.runs.files import OVERRIDES
from rdm_solo.runs.folder import RunFolder
from rdm_solo.runs.groups import mean_std
from rdm_solo.runs.settings import MODEL
from rdm_solo.runs.settings import settings as setting_options

RANKS = [COLUMNS["erank/target"], COLUMNS["erank/online"]]
REST = [COLUMNS["erank/gap"], COLUMNS["erank/centred"], COLUMNS["train/loss"]]
OVERVIEW = [*ACCURACIES, *RANKS, *REST]  # of a setting
RUN_COLUMNS = [*EPOCH_ACCURACIES, *RANKS]
MEASURES = columns.measures()
_SHOWN = [*OVERVIEW, *MEASURES]
OTHERS = [column for column in COLUMNS.values() if column.chart and column not in _SHOWN]


def contents(settings: Sequence[Setting]) -> dict[str, Any]:
    """Return the template's values for the tables of these settings."""
    names: dict[RunFolder, str] = {}
    for setting in settings:
        for run in setting.group.runs:
            names[run] = f"{setting.label}, seed {run.seed}"
    folders = [run.folder for run in names]
    return {
        "overview_columns": _measured(OVERVIEW, settings),
        "run_columns": _measured(RUN_COLUMNS, settings),
        "measures": _measured(MEASURES, settings),
        "other_columns": _measured(OTHERS, settings),
        "caveats": caveats(settings),
        "warnings": warnings(names),
        "folders": dict(zip(folders, relative(folders))),
        "facts": facts(settings),
        "versions": package_versions(names),
        "commands": commands(settings),
        "paper_rows": paper_rows(settings),
    }


def _measured(columns: Sequence[Column], settings: Sequence[Setting]) -> list[Column]:
    """Return the columns in which a setting has a value."""
    return [column for column in columns if any(setting.last(column.name) for setting in settings)]


def caveats(settings: Sequence[Setting]) -> list[str]:
    """Return the caveats of the verdicts, with the settings that each one is about."""
    labels: dict[str, list[str]] = defaultdict(list)
    for setting in settings:
        for verdict in (setting.lead, setting.low_pass):
            if verdict.caveat:
                labels[verdict.caveat].append(setting.label)
    return _named(labels, len(settings))


def _named(sentences: Mapping[str, Sequence[str]], total: int) -> list[str]:
    """Return the sentences, each prefixed with its names unless it holds for all."""
    lines = []
    for sentence, names in sentences.items():
        if len(names) < total:
            sentence = f"{join_first(names)}: {sentence}"
        lines.append(sentence)
    return lines


def facts(settings: Sequence[Setting]) -> list[dict[str, str]]:
    """Return what was run: data, network, batch, seeds, epochs, time and device.

    A heading under which no setting has an entry is left out.
    """
    rows = list(map(_facts, settings))
    used = []
    for heading in rows[0]:
        if any(row[heading] != "–" for row in rows):
            used.append(heading)
    return [{heading: row[heading] for heading in used} for row in rows]


def _facts(setting: Setting) -> dict[str, str]:
    run = setting.group.first
    seeds = []
    epochs = set()
    devices = set()
    seconds = []
    for each in setting.group.runs:
        seeds.append(each.seed)
        epochs.add(each.epochs)
        devices.add(each.summary.get("device", "–"))
        if "seconds" in each.summary:
            seconds.append(each.summary["seconds"])
    time = f"{statistics.fmean(seconds) / 60:.1f} min" if seconds else "–"
    passed = [f"{name}={value}" for name, value in run.watched_config.items()]
    return {
        "setting": setting.label,
        "filter": run.filter,
        "p": exponent(run.config.get("p")) or "–",
        "data": run.dataset,
        "seeds": ", ".join(map(str, sorted(seeds))),
        "epochs": "–".join(map(str, sorted(epochs))),
        "network": str(OmegaConf.select(run.config, "backbone.name", default="–")),
        "batch": str(global_batch(run)),
        "config of the loop": ", ".join(passed) or "–",
        "time": time,
        "device": ", ".join(sorted(devices)),
    }


def package_versions(names: Mapping[RunFolder, str]) -> list[str]:
    """Return the versions of packages, with the names of the runs that used them."""
    users: dict[str, list[str]] = defaultdict(list)
    for run, name in names.items():
        versions = run.summary.get("versions") or {"versions": "unknown"}
        packages = [f"{package} {number}" for package, number in versions.items()]
        users[f"{', '.join(packages)}."].append(name)
    return _named(users, len(names))


def warnings(names: Mapping[RunFolder, str]) -> list[str]:
    """Return the warnings of collapse that runs logged while they trained."""
    lines = []
    for run, name in names.items():
        for warning in run.summary.get("warnings", []):
            lines.append(f"{name}, epoch {warning['epoch']}: {warning['text']}")
    return lines


def global_batch(run: RunFolder) -> Any:
    """Return the number of images in a batch over all devices."""
    return run.derived.get("global_batch", run.config.get("batch_size", "–"))


def commands(settings: Sequence[Setting]) -> list[str]:
    """Return the commands that repeat the runs; one command covers several seeds."""
    lines = []
    for setting in settings:
        seeds: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for run in setting.group.runs:
            with contextlib.suppress(OSError, ValueError):  # the file is missing or damaged
                options = []
                for option in map(str, files.read_yaml(run.folder, OVERRIDES)):
                    # Without the sweep's launcher, the command runs anywhere.
                    if not option.lstrip("+").startswith(("seed=", "launcher")):
                        options.append(option)
                seeds[tuple(options)].append(run.seed)
        for passed, numbers in seeds.items():
            words = ["rdm-solo", "train"]
            if len(numbers) > 1:
                words.append("-m")
            values = ",".join(map(str, sorted(numbers)))
            lines.append(shlex.join([*words, *passed, f"seed={values}"]))
    return lines


def relative(paths: Sequence[Path]) -> list[str]:
    """Return the paths relative to their common parent folder.

    >>> relative([Path("runs/byol/30"), Path("runs/swav/30")])
    ['byol/30', 'swav/30']
    """
    absolute = list(map(os.path.abspath, paths))
    shared = os.path.commonpath(map(os.path.dirname, absolute))
    return [os.path.relpath(path, shared) for path in absolute]


def paper_rows(settings: Sequence[Setting]) -> list[dict[str, str]]:
    """Return the paper's numbers beside those measured with the same setting."""
    rows = []
    for setting in settings:
        for row in paper.rows():
            if row.table != "cost" and _is_same_setting(setting, row):
                rows.append(_compare(setting, row))
    return rows


def _is_same_setting(setting: Setting, row: paper.Row) -> bool:
    """Return whether a setting has finished with the paper's data, method, filter, p and epochs."""
    run = setting.counted[0]
    name = f"{run.dataset}/{run.method}"
    if not run.chosen_filter.absent:
        name += f"_{run.filter}"
    experiment, *_ = paper.preset(row)
    if experiment != f"experiment={name}" or row.p != run.p:
        return False
    if run.epochs != run.config.get("max_epochs"):
        return False
    return row.metric == "alignment" or row.epochs in (run.epochs, None)


def _compare(setting: Setting, row: paper.Row) -> dict[str, str]:
    """Return a table row with a number of the paper beside the setting's number."""
    runs = setting.counted
    differences = [_differences(setting.group.first, row)]
    if row.metric == "alignment":
        measure = "alignment with C₊"
        digits = 4
        missing = "not measured"
        values = setting.last("alignment/target_positive_paper_m")
    else:
        top = row.metric.removeprefix("acc")
        measure = f"linear top-{top} %"
        digits = 2
        missing = "run rdm-solo linear on it"
        evaluation = most_common(runs)  # need not be comparable with other settings
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
        "differences": "; ".join(filter(None, differences)) or "none known",
    }


def _differences(run: RunFolder, row: paper.Row) -> str:
    """Return the options in which a run differs from the preset of the paper's row."""
    options = setting_options(run.config, MODEL)
    options["batch_size"] = global_batch(run)
    preset = arguments.compose("config", paper.preset(row))
    differences = []
    for name, value in setting_options(preset, MODEL).items():
        if options.get(name, value) != value:
            differences.append(f"{name}={options[name]} (preset: {value})")
    return join_first(differences)
