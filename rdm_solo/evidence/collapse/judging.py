"""What became of a run of the study, and what the warnings said of it."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from rdm_solo.evidence.collapse.runs import OTHERS, PLAN, series
from rdm_solo.methods.descriptions import METHODS
from rdm_solo.spectra.collapse import WRONG_WAY, Bounds, MeasuredEpoch, kinds_of_collapse

Row = Mapping[str, str]
IN_TIME = 2  # measured epochs after the event within which a warning is in time
LABELS = ("features", "one point", "few directions")
WARMUP = 3


def labels_of_epochs(row: Row) -> dict[str, list[bool]]:
    """For each label, in which epochs it holds; number 0 is the untrained network."""
    knn, rank, variance = (
        series(row, name) for name in ("knn", "held_out_rank", "held_out_variance")
    )
    least = knn[0] + PLAN["margin"]
    return {
        "features": [value < least for value in knn],
        "one point": [value < 1 - PLAN["cosine"] for value in variance],
        "few directions": [value < PLAN["directions"] for value in rank],
    }


def events(row: Row) -> dict[str, int]:
    """The labels that a run got, and from which epoch to the end."""
    found = {}
    for label, epochs in labels_of_epochs(row).items():
        good = [epoch for epoch, holds in enumerate(epochs) if not holds]
        first = max(PLAN["judged_from"], max(good, default=0) + 1)
        if len(epochs) - first >= PLAN["in_a_row"]:
            found[label] = first
    return found


def first_in_a_row(row: Row, start: int) -> dict[str, int]:
    """The same by another definition: the first of three epochs in a row, from ``start`` on,
    whether or not the label holds to the end."""
    found, needed = {}, PLAN["in_a_row"]
    for label, epochs in labels_of_epochs(row).items():
        starts = range(start, len(epochs) - needed + 1)
        first = next((at for at in starts if all(epochs[at : at + needed])), None)
        if first is not None:
            found[label] = first
    return found


def history(row: Row) -> list[MeasuredEpoch]:
    """Return what the watch read of a run, without kNN, which the labels are made from."""
    softmax, k = METHODS[row["method"]].softmax, int(row["dimensions"])
    names = ("feature/spread", "erank/centred", "erank/gap", "erank/projection")
    gaps = [math.expm1(gap) for gap in series(row, "gap")]
    columns = series(row, "variance"), series(row, "centred"), gaps, series(row, "erank")
    epochs = [dict(zip(names, values), **{"erank/online": 1.0}) for values in zip(*columns)]
    return [MeasuredEpoch.read(e, number, k, softmax) for number, e in enumerate(epochs, start=1)]


def warnings(epochs: Sequence[MeasuredEpoch], bounds: Bounds) -> dict[str, int]:
    """The kinds of collapse that the watch warned of, and in which epoch first."""
    found: dict[str, int] = {}
    for n, epoch in enumerate(epochs, start=1):
        for kind in kinds_of_collapse(epochs[:n], bounds):
            found.setdefault(kind, epoch.epoch)
    return found


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
        """Whether it is a run with a healthy setting that did not collapse."""
        return self.row["setting"].startswith("healthy ") and not self.collapsed

    @property
    def named(self) -> bool:
        """Whether a warning of a collapse came in time; one of a negative gap does not count."""
        came = [epoch for kind, epoch in self.warnings.items() if kind != WRONG_WAY]
        return bool(came) and min(came) <= min(self.events.values()) + IN_TIME


def judge(row: Row, bounds: Bounds) -> Judged:
    """That run by these bounds."""
    return Judged(row, events(row), warnings(history(row), expected(row, bounds)))


def expected(row: Row, bounds: Bounds) -> Bounds:
    """The bounds without the one of a gap, where nothing says that there should be one."""
    if row["part"] == OTHERS and not METHODS[row["method"]].leads:
        return replace(bounds, gap_epochs=None)
    return bounds


def judge_all(rows: Sequence[Row], bounds: Bounds | None = None) -> list[Judged]:
    """The runs that did not diverge: the command ends those itself."""
    bounds = bounds or Bounds(warmup=WARMUP)
    return [*map(partial(judge, bounds=bounds), (row for row in rows if not row["diverged"]))]


def redefined(
    runs: Sequence[Judged],
    define: Callable[[Row], Mapping[str, int]],
    labels: Collection[str] = LABELS,
) -> list[Judged]:
    """The runs with the events of another definition, of these labels alone."""
    return [
        replace(run, events={name: at for name, at in define(run.row).items() if name in labels})
        for run in runs
    ]


def named(runs: Sequence[Judged]) -> tuple[int, int]:
    """How many collapses were warned of in time, of how many."""
    collapses = [run for run in runs if run.collapsed]
    return sum(run.named for run in collapses), len(collapses)


def alarms(runs: Sequence[Judged]) -> tuple[int, int]:
    """How many healthy controls were warned of, of how many."""
    return _warned([run for run in runs if run.control])


def unlabelled(runs: Sequence[Judged]) -> tuple[int, int]:
    """The same of runs with an induced failure that have no label."""
    return _warned([run for run in runs if not run.collapsed and not run.control])


def alarms_as_planned(runs: Sequence[Judged]) -> tuple[int, int]:
    """The same of both, as the plan's first words have it: all runs without a label are healthy."""
    return _warned([run for run in runs if not run.collapsed])


def _warned(runs: Sequence[Judged]) -> tuple[int, int]:
    return sum(bool(run.warnings) for run in runs), len(runs)
