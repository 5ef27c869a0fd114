"""Print a table of a sweep's runs when it ends."""

import math
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

if TYPE_CHECKING:  # Hydra imports this module even for --help
    from rdm_solo.runs.folder import RunFolder
    from rdm_solo.runs.groups import Group

HEADINGS = {
    "val/knn_acc1": "kNN",
    "val/acc1": "acc1",
    "erank/online": "online",
    "erank/target": "target",
    "erank/gap": "gap",
    "feature/spread": "spread",
}


class SweepTable(Callback):
    """Print a table of the runs when a sweep ends; exit with status 1 if a run failed."""

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        if print_table(Path(config.hydra.sweep.dir)):
            raise SystemExit(1)


def print_table(folder: Path) -> bool:
    """Print the table of the runs in a sweep's folder; return whether any run failed."""
    from rdm_solo import runs
    from rdm_solo.ground.errors import UserError
    from rdm_solo.runs import ownership

    try:
        members, errors = runs.scan([folder])
    except UserError:  # no run has started
        members, errors = [], {}
    begun = [run for run in members if run.epochs or run.diverged]
    print(f"\n{table(begun)}" if begun else "no run has finished an epoch")

    names_by_reason: dict[str, list[str]] = {}
    for path in sorted(folder.iterdir()):
        reason = ownership.failure(path) or errors.get(path)
        if reason:
            names_by_reason.setdefault(reason, []).append(path.name)
    for reason, names in names_by_reason.items():
        print(f"failed: {', '.join(names)}: {reason}")
    print(f"figures and tables on one page: rdm-solo report {shlex.quote(str(folder))}")
    return bool(names_by_reason)


def table(runs: "Sequence[RunFolder]") -> str:
    """Format one row per setting: mean and standard deviation over seeds of the last values."""
    from rdm_solo.runs import groups

    columns = []
    for name in HEADINGS:
        if any(math.isfinite(run.last(name)) for run in runs):
            columns.append(name)
    if "val/knn_acc1" in columns and "val/acc1" in columns:  # one accuracy is enough
        columns.remove("val/acc1")

    def cells(group: "Group") -> list[str]:
        counted = group.counted
        values = [groups.format_latest(counted, name, 2) for name in columns]
        seconds = [run.summary["seconds"] for run in counted if "seconds" in run.summary]
        return [*values, groups.mean_std(seconds, 0), _warning_counts(group.runs)]

    headings = [HEADINGS[name] for name in columns]
    return groups.text_table(groups.by_setting(runs), [*headings, "seconds", ""], cells)


def _warning_counts(runs: "Sequence[RunFolder]") -> str:
    """Return the kinds of warning that one setting's runs raised, with counts."""
    kinds: Counter[str] = Counter()
    for run in runs:
        if run.diverged:
            kinds[f"diverged in epoch {run.diverged}"] += 1
    for run in runs:
        kinds.update(warning["kind"] for warning in run.summary.get("warnings", []))
    if not kinds:
        return ""
    if len(runs) == 1:
        return f"! {', '.join(kinds)}"
    counts = [f"{kind} ({count} of {len(runs)})" for kind, count in kinds.items()]
    return f"! {', '.join(counts)}"
