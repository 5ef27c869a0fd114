"""What the report's tables show: columns, caveats, what was run, and commands that repeat it."""

import contextlib
import os
import shlex
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from omegaconf import OmegaConf

from rdm_solo.ground.errors import join_first
from rdm_solo.ground.values import finite
from rdm_solo.report.judged import ACCURACIES, Setting
from rdm_solo.runs import columns, files
from rdm_solo.runs.columns import COLUMNS, Column
from rdm_solo.runs.files import OVERRIDES
from rdm_solo.runs.folder import Run
from rdm_solo.runs.groups import format_latest, run_name
from rdm_solo.runs.saved_config import exponent

OVERVIEW = [
    *ACCURACIES,
    COLUMNS["erank/target"],
    COLUMNS["erank/online"],
    COLUMNS["erank/gap"],
    COLUMNS["erank/centred"],
    COLUMNS["train/loss"],
]
RUN_COLUMNS = OVERVIEW[1:-3]  # accuracies but the linear one, and ranks
MEASURES = columns.measures()
OTHERS = [
    column for column in COLUMNS.values() if column.chart and column not in (*OVERVIEW, *MEASURES)
]


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
        prefix = "" if len(names) == total else f"{join_first(names)}: "
        lines.append(prefix + sentence)
    return lines


def last_value(run: Run, column: Column) -> str:
    """Return a run's last value, with its epoch if it is an earlier one."""
    return format_latest([run], column.name, column.digits)


def facts(setting: Setting) -> dict[str, str]:
    """Return what was run: data, network, batch, seeds, epochs, time and device."""
    run = setting.group.first
    seeds, epochs, devices, seconds = [], set(), set(), []
    for each in setting.group.runs:
        seeds.append(each.seed)
        epochs.add(each.epochs)
        devices.add(str(each.summary.get("device", "–")))
        wall_time = finite(each.summary.get("seconds"))
        if wall_time is not None:
            seconds.append(wall_time)
    return {
        "setting": setting.label,
        "filter": run.filter,
        "p": exponent(run.config.get("p")) or "–",
        "data": run.dataset,
        "seeds": ", ".join(map(str, sorted(seeds))),
        "epochs": "–".join(map(str, sorted(epochs))),
        "network": str(OmegaConf.select(run.config, "backbone.name", default="–")),
        "batch": global_batch(run),
        "time": f"{statistics.fmean(seconds) / 60:.1f} min" if seconds else "–",
        "device": ", ".join(sorted(devices)),
    }


def package_versions(runs: Sequence[Run]) -> list[str]:
    """Return the versions of packages, with the runs that used them."""
    names: dict[str, list[str]] = defaultdict(list)
    for run in runs:
        versions = run.summary.get("versions") or {"versions": "unknown (no summary.json)"}
        packages = [f"{name} {number}" for name, number in versions.items()]
        names[f"{', '.join(packages)}."].append(run_name(run))
    return _named(names, len(runs))


def global_batch(run: Run) -> str:
    """Return the number of images in a batch over all devices, as text."""
    derived = run.summary.get("derived") or {}
    return str(derived.get("global_batch", run.config.get("batch_size", "–")))


def commands(settings: Sequence[Setting]) -> list[str]:
    """Return the commands that repeat the runs; one command covers several seeds."""
    lines = []
    for setting in settings:
        seeds: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for run in setting.group.runs:
            with contextlib.suppress(OSError, ValueError):  # the file is missing or damaged
                options = map(str, files.read_yaml(run.folder, OVERRIDES))
                # Without the sweep's launcher, the command runs anywhere.
                removed = ("seed=", "launcher")
                kept = tuple(o for o in options if not o.lstrip("+").startswith(removed))
                seeds[kept].append(run.seed)
        for kept, numbers in seeds.items():
            multirun = ["-m"] if len(numbers) > 1 else []
            seed = f"seed={','.join(map(str, sorted(numbers)))}"
            lines.append(shlex.join(["rdm-solo", "train", *multirun, *kept, seed]))
    return lines


def relative(paths: Sequence[Path]) -> list[str]:
    """Return the paths relative to their common parent folder.

    >>> relative([Path("runs/byol/30"), Path("runs/swav/30")])
    ['byol/30', 'swav/30']
    """
    absolute = list(map(os.path.abspath, paths))
    shared = os.path.commonpath(map(os.path.dirname, absolute))
    return [Path(path).relative_to(shared).as_posix() for path in absolute]
