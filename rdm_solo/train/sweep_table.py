"""Print a table of a sweep's runs when it ends."""

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
    "val/acc1": "online acc.",
    "erank/online": "rank online",
    "erank/target": "rank target",
    "erank/gap": "gap",
    "feature/spread": "spread",
}


class SweepTable(Callback):
    """Print a table of the runs when a sweep ends; exit with status 1 if a run failed."""

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        from rdm_solo import runs
        from rdm_solo.ground.errors import UserError
        from rdm_solo.runs import ownership

        folder = Path(config.hydra.sweep.dir)
        try:
            members, errors = runs.scan([folder])
        except UserError:  # no run has started
            members, errors = [], {}
        any_failed = False
        for path in sorted(folder.iterdir()):
            reason = ownership.failure(path) or errors.get(path)
            if reason:
                print(f"failed: {path.name}: {reason}")
                any_failed = True
        begun = [run for run in members if run.epochs or run.diverged]
        print(f"\n{table(begun)}" if begun else "no run has finished an epoch")
        print(f"figures and tables on one page: rdm-solo report {shlex.quote(str(folder))}")
        if any_failed:
            raise SystemExit(1)


def table(runs: "Sequence[RunFolder]") -> str:
    """Format one row per setting: mean and standard deviation over seeds of the last values."""
    from rdm_solo.runs import groups

    columns = [name for name in HEADINGS if any(run.has_values(name) for run in runs)]

    def cells(group: "Group") -> list[str]:
        counted = group.counted
        texts = [groups.format_latest(counted, name, 2) for name in columns]
        seconds = [run.summary["seconds"] for run in counted if "seconds" in run.summary]
        return [*texts, groups.mean_std(seconds, 0), answers(group.runs)]

    headings = [HEADINGS[name] for name in columns]
    return groups.text_table(groups.by_setting(runs), [*headings, "seconds", "health"], cells)


def answers(runs: "Sequence[RunFolder]") -> str:
    """Count one setting's answers to "is it alive?", and the warnings and notes of its runs."""
    alive: Counter[str] = Counter()
    warnings: Counter[str] = Counter()
    for run in runs:
        answer, _, _ = run.health.answer.partition(":")
        if run.diverged is not None:
            answer = "diverged"
        alive[answer] += 1
        warnings.update(warning["kind"] for warning in run.summary.get("warnings", []))
    words = [_count(answer, number, runs) for answer, number in alive.items()]
    text = ", ".join(words)
    for kind, number in warnings.items():
        text += f"  ! {_count(kind, number, runs)}"
    return text


def _count(word: str, number: int, runs: "Sequence[RunFolder]") -> str:
    return word if number == len(runs) else f"{word} ({number} of {len(runs)})"
