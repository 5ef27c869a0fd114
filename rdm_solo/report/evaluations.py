"""Linear evaluations that may be compared: on each data set those of one kind and protocol."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from rdm_solo.runs.folder import Run
from rdm_solo.runs.groups import Group, counted_runs
from rdm_solo.runs.linear_file import KINDS, Record

FEATURES = {"protocol": "augmented images", "cached": "cached features"}


class Evaluation(NamedTuple):
    """What accuracies must share to be averaged or ranked; the classifier's seed is none of it."""

    kind: str
    protocol: str  # as JSON, in which equal protocols are equal text

    @property
    def options(self) -> dict[str, Any]:
        protocol = json.loads(self.protocol)
        return protocol if isinstance(protocol, dict) else {}


def of_run(run: Run) -> dict[Evaluation, list[Record]]:
    """A run's evaluations, an entry for each seed of the classifier; of each kind the latest
    protocol first."""
    found: dict[Evaluation, list[Record]] = {}
    for kind in KINDS:
        for entry in reversed(run.linear.get(kind, [])):
            numbers = json.loads(json.dumps(entry.get("protocol")), parse_int=float)  # 30 is 30.0
            evaluation = Evaluation(kind, json.dumps(numbers, sort_keys=True))
            found.setdefault(evaluation, []).append(entry)
    return found


def common(runs: Sequence[Run]) -> Evaluation | None:
    """The kind and protocol that most of the runs have; on a tie the first of ``KINDS``, and of
    one kind the latest. None where no run was evaluated."""
    counts = Counter(evaluation for run in runs for evaluation in of_run(run))
    return max(counts, key=lambda e: (counts[e], -KINDS.index(e.kind)), default=None)


def comparable(groups: Sequence[Group]) -> list[Group]:
    """The same settings, whose runs have no linear evaluations but those of the kind and protocol
    that are compared on their data set."""
    chosen = _by_dataset(groups)
    return [
        replace(group, runs=tuple(_only(run, chosen[run.dataset]) for run in group.runs))
        for group in groups
    ]


def not_compared(groups: Sequence[Group]) -> dict[Run, str]:
    """For each run that was evaluated, but not as most runs on its data set: in what it differs."""
    chosen = _by_dataset(groups)
    said = {}
    for run in [run for group in groups for run in group.runs]:
        found, wanted = of_run(run), chosen[run.dataset]
        if wanted and found and wanted not in found:
            own, others = _differences(next(iter(found)), wanted)
            said[run] = (
                f"its linear accuracy ({own}) is left out of comparisons and n, because those on "
                f"{run.dataset} are compared by another ({others})"
            )
    return said


def _by_dataset(groups: Sequence[Group]) -> dict[str, Evaluation | None]:
    """What is compared on each data set: most of the runs that results are made of have it."""
    names = {run.dataset for group in groups for run in group.runs}
    runs = [run for group in groups for run in counted_runs(group)]
    return {name: common([run for run in runs if run.dataset == name]) for name in names}


def _only(run: Run, evaluation: Evaluation | None) -> Run:
    if evaluation is None:
        return run
    entries = of_run(run).get(evaluation, [])
    return replace(run, linear={evaluation.kind: entries} if entries else {})


def _differences(one: Evaluation, other: Evaluation) -> tuple[str, str]:
    """The kinds, and the options of the protocols that differ, in words."""
    names = [n for n in other.options | one.options if one.options.get(n) != other.options.get(n)]
    own, others = (
        ", ".join([FEATURES[e.kind], *(f"{n}={_number(e.options.get(n, 'unset'))}" for n in names)])
        for e in (one, other)
    )
    return own, others


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
