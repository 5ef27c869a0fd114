"""The runs of a multirun in one table, when the last of them has ended."""

import math
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.utils import JobStatus
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from rdm_solo.runs import failures
from rdm_solo.runs.files import FAILED, is_aside
from rdm_solo.train import environment

if TYPE_CHECKING:  # Hydra imports this module before it answers --help
    from rdm_solo.runs import folder as of_run

COLUMNS = {
    "val/knn_acc1": "kNN",
    "val/acc1": "acc1",
    "erank/online": "online",
    "erank/target": "target",
    "erank/gap": "gap",
    "feature/variance": "variance",
}


class SweepTable(Callback):
    """Hydra's callback that prints the table; the command's status is 1 where a run failed."""

    def __init__(self) -> None:
        self.reasons: list[str] = []  # why runs have failed, of those that no folder names
        self.submitted = False  # the runs go on after this command

    def on_job_end(self, config: DictConfig, job_return: Any, **kwargs: Any) -> None:
        self.submitted |= job_return.status is JobStatus.UNKNOWN
        if isinstance(job_return._return_value, str):
            self.reasons.append(job_return._return_value)

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        if self.submitted:
            return
        failed = tell(Path(config.hydra.sweep.dir))
        for sentence in self.reasons:
            print(sentence)
        if failed or self.reasons:
            raise SystemExit(1)


def of_this_process() -> Path | None:
    """The folder of the sweep whose run this process trains; None outside a sweep."""
    folder = os.environ.get(environment.SWEEP)
    return Path(folder) if folder else None


def how_to_go_on(folder: Path) -> str:
    """The command that runs what a sweep that was stopped has left."""
    return f"to go on: python -m rdm_solo.train {shlex.quote(f'resume={folder}')}"


def tell(folder: Path, stopped: bool = False) -> bool:
    """Print the table of the runs in a sweep's folder; whether one has failed."""
    from rdm_solo import runs

    failed = [path for path in folder.rglob(FAILED) if not is_aside(path.parent)]
    failed.sort(key=lambda path: path.stat().st_mtime)
    try:
        found, broken = runs.survey([folder])
    except ValueError:  # no run has begun
        found, broken = [], {}
    done = [run for run in found if run.epochs or run.diverged]
    for sentence in broken.values():
        print(f"failed: {sentence}")
    if stopped:
        begun = sum(run.epochs > 0 for run in done)
        print(f"the sweep ends here: {begun} of its runs have an epoch")
    if done:
        print(f"\n{table(done)}")
        reasons: dict[str | None, list[str]] = {}
        for path in failed:
            reasons.setdefault(failures.of(path.parent), []).append(path.parent.name)
        for reason, names in reasons.items():
            print(f"failed: {', '.join(names)}: {reason}")
        print(f"the runs are in {folder}; a page with their pictures and tables:")
        print(f"    python -m rdm_solo.report {shlex.quote(str(folder))}")
    elif not stopped:
        print(f"no run has finished an epoch; the folders are in {folder}")
    if stopped:
        print(how_to_go_on(folder))
    return bool(failed or broken)


def table(found: Sequence["of_run.Run"]) -> str:
    """A row for each setting: mean and standard deviation of the last values over its seeds."""
    from rdm_solo.runs.groups import (
        Group,
        counted_runs,
        groups,
        latest_in_words,
        spread,
        text_table,
    )

    columns = [name for name in COLUMNS if any(math.isfinite(run.last(name)) for run in found)]
    if "val/knn_acc1" in columns and "val/acc1" in columns:  # one accuracy is enough
        columns.remove("val/acc1")

    def cells(group: Group) -> list[str]:
        counted = counted_runs(group)
        known = [run.summary["seconds"] for run in counted if "seconds" in run.summary]
        values = [latest_in_words(counted, name, 2) for name in columns]
        return [*values, spread(known, 0), _warned(group.runs)]

    return text_table(groups(found), [*(COLUMNS[name] for name in columns), "seconds", ""], cells)


def _warned(alike: Sequence["of_run.Run"]) -> str:
    """Where these runs diverged and what the watch said, and of how many."""
    kinds = [f"diverged in epoch {run.diverged}" for run in alike if run.diverged]
    kinds += [warning["kind"] for run in alike for warning in run.summary.get("warnings", [])]
    told = [
        f"{kind} ({kinds.count(kind)} of {len(alike)})" if len(alike) > 1 else kind
        for kind in dict.fromkeys(kinds)
    ]
    return f"! {', '.join(told)}" if told else ""
