"""What happened in a run of the study, and what the warnings reported."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from rdm_solo.methods.descriptions import METHODS
from rdm_solo.spectra.collapse import WRONG_WAY, Bounds, MeasuredEpoch, kinds_of_collapse
from studies.collapse.plan import OTHERS, PLAN
from studies.table import Row, series

IN_TIME = 2  # measured epochs after the event within which a warning is in time
LABELS = ("features", "one point", "few directions")
WARMUP = 3


def labels_of_epochs(row: Row) -> dict[str, list[bool]]:
    """Return for each label in which epochs it holds; number 0 is the untrained network."""
    knn = series(row["knn"])
    least = knn[0] + PLAN["margin"]
    return {
        "features": [accuracy < least for accuracy in knn],
        "one point": [value < 1 - PLAN["cosine"] for value in series(row["held_out_variance"])],
        "few directions": [rank < PLAN["directions"] for rank in series(row["held_out_rank"])],
    }


def events(row: Row) -> dict[str, int]:
    """Return the labels of a run, each with the epoch from which it holds to the end."""
    starts = {}
    for label, epochs in labels_of_epochs(row).items():
        good = [epoch for epoch, holds in enumerate(epochs) if not holds]
        first = max(PLAN["judged_from"], max(good, default=0) + 1)
        if len(epochs) - first >= PLAN["in_a_row"]:
            starts[label] = first
    return starts


def first_in_a_row(row: Row, start: int) -> dict[str, int]:
    """Return the labels that hold in three epochs in a row, with the first of these epochs from
    ``start`` on, whether or not the label holds to the end."""
    starts, needed = {}, PLAN["in_a_row"]
    for label, epochs in labels_of_epochs(row).items():
        candidates = range(start, len(epochs) - needed + 1)
        first = next((at for at in candidates if all(epochs[at : at + needed])), None)
        if first is not None:
            starts[label] = first
    return starts


def history(row: Row) -> list[MeasuredEpoch]:
    """Return what the watch read of a run, without kNN, which the labels are made from."""
    softmax, k = METHODS[row["method"]].softmax, int(row["dimensions"])
    names = ("feature/spread", "erank/centred", "erank/gap", "erank/projection")
    gaps = [math.expm1(gap) for gap in series(row["gap"])]
    columns = series(row["variance"]), series(row["centred"]), gaps, series(row["erank"])
    epochs = [dict(zip(names, values), **{"erank/online": 1.0}) for values in zip(*columns)]
    return [MeasuredEpoch.read(e, number, k, softmax) for number, e in enumerate(epochs, start=1)]


def warnings(epochs: Sequence[MeasuredEpoch], bounds: Bounds) -> dict[str, int]:
    """Return the kinds of collapse that the watch warns of, each with the epoch of its warning."""
    kinds: dict[str, int] = {}
    for n, epoch in enumerate(epochs, start=1):
        for kind in kinds_of_collapse(epochs[:n], bounds):
            kinds.setdefault(kind, epoch.epoch)
    return kinds


@dataclass(frozen=True)
class Judged:
    """A run: its labels with their events, and the warnings with their epochs."""

    row: Row
    events: Mapping[str, int]
    warnings: Mapping[str, int]

    @property
    def collapsed(self) -> bool:
        return bool(self.events)

    @property
    def control(self) -> bool:
        """Return whether the run has a healthy setting and did not collapse."""
        return self.row["setting"].startswith("healthy ") and not self.collapsed

    @property
    def in_time(self) -> bool:
        """Return whether a warning other than that of a negative gap came in time."""
        epochs = [epoch for kind, epoch in self.warnings.items() if kind != WRONG_WAY]
        return bool(epochs) and min(epochs) <= min(self.events.values()) + IN_TIME


def judge(row: Row, bounds: Bounds) -> Judged:
    """Judge a run by these bounds."""
    return Judged(row, events(row), warnings(history(row), expected(row, bounds)))


def expected(row: Row, bounds: Bounds) -> Bounds:
    """Return the bounds, without that of the gap where nothing says that there should be one."""
    if row["part"] == OTHERS and not METHODS[row["method"]].leads:
        return replace(bounds, gap_epochs=None)
    return bounds


def judge_all(rows: Sequence[Row], bounds: Bounds | None = None) -> list[Judged]:
    """Judge the runs that did not diverge; divergence ends a run with an error anyway."""
    bounds = bounds or Bounds(warmup=WARMUP)
    return [judge(row, bounds) for row in rows if not row["diverged"]]


def redefined(
    runs: Sequence[Judged],
    define: Callable[[Row], Mapping[str, int]],
    labels: Collection[str] = LABELS,
) -> list[Judged]:
    """Return the runs with the events of another definition, for these labels alone."""
    return [
        replace(run, events={name: at for name, at in define(run.row).items() if name in labels})
        for run in runs
    ]


def in_time(runs: Sequence[Judged]) -> tuple[int, int]:
    """Return how many collapses were detected in time, and of how many."""
    collapses = [run for run in runs if run.collapsed]
    return sum(run.in_time for run in collapses), len(collapses)


def alarms(runs: Sequence[Judged]) -> tuple[int, int]:
    """Return how many healthy controls raised a warning, and of how many."""
    return _warned([run for run in runs if run.control])


def unlabelled(runs: Sequence[Judged]) -> tuple[int, int]:
    """Return how many induced failures without a label raised a warning, and of how many."""
    return _warned([run for run in runs if not run.collapsed and not run.control])


def alarms_as_planned(runs: Sequence[Judged]) -> tuple[int, int]:
    """Return both together: the plan first counted all runs without a label as healthy."""
    return _warned([run for run in runs if not run.collapsed])


def _warned(runs: Sequence[Judged]) -> tuple[int, int]:
    return sum(bool(run.warnings) for run in runs), len(runs)
