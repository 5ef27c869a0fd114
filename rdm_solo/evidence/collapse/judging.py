"""What became of a run of the study, and what the warnings said of it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from rdm_solo.evidence.collapse.runs import PLAN, series
from rdm_solo.methods.descriptions import METHODS
from rdm_solo.spectra.collapse import WRONG_WAY, Bounds, MeasuredEpoch, kinds_of_collapse

Row = Mapping[str, str]
IN_TIME = 2  # measured epochs after the event within which a warning names it
LABELS = ("features", "one point", "few directions")
WARMUP = 3


def events(row: Row) -> dict[str, int]:
    """The labels that a run got, and in which epoch."""
    knn, rank, variance = (
        series(row, name) for name in ("knn", "held_out_rank", "held_out_variance")
    )
    least = knn[0] + PLAN["margin"]
    bad = {
        "features": [value < least for value in knn],
        "one point": [value < 1 - PLAN["cosine"] for value in variance],
        "few directions": [value < PLAN["directions"] for value in rank],
    }
    found = {}
    for label, epochs in bad.items():  # number 0 is the untrained network
        good = [epoch for epoch, holds in enumerate(epochs) if not holds]
        first = max(PLAN["judged_from"], max(good, default=0) + 1)
        if len(epochs) - first >= PLAN["in_a_row"]:
            found[label] = first
    return found


def history(row: Row) -> list[MeasuredEpoch]:
    """What the watch read of a run."""
    columns = (series(row, name) for name in ("variance", "centred", "gap", "erank"))
    softmax = METHODS[row["method"]].softmax
    return [
        MeasuredEpoch(
            epoch, variance, rank, int(row["dimensions"]), gap, one if softmax else math.nan
        )
        for epoch, (variance, rank, gap, one) in enumerate(zip(*columns), start=1)
        if math.isfinite(variance + rank)
    ]


def warnings(epochs: Sequence[MeasuredEpoch], bounds: Bounds) -> dict[str, int]:
    """The kinds of collapse that the watch named, and in which epoch first."""
    found: dict[str, int] = {}
    for n, epoch in enumerate(epochs, start=1):
        for kind in kinds_of_collapse(epochs[max(0, n - bounds.read) : n], bounds):
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
    return Judged(row, events(row), warnings(history(row), bounds))


def judge_all(rows: Sequence[Row], bounds: Bounds | None = None) -> list[Judged]:
    """The runs that did not diverge: the command ends those itself."""
    bounds = bounds or Bounds(warmup=WARMUP)
    return [*map(partial(judge, bounds=bounds), (row for row in rows if not row["diverged"]))]


def named(runs: Sequence[Judged]) -> tuple[int, int]:
    """How many collapses were named in time, of how many."""
    collapses = [run for run in runs if run.collapsed]
    return sum(run.named for run in collapses), len(collapses)


def alarms(runs: Sequence[Judged]) -> tuple[int, int]:
    """How many healthy controls were warned of, of how many."""
    return _warned([run for run in runs if run.control])


def unlabelled(runs: Sequence[Judged]) -> tuple[int, int]:
    """The same of runs with an induced failure that have no label."""
    return _warned([run for run in runs if not run.collapsed and not run.control])


def _warned(runs: Sequence[Judged]) -> tuple[int, int]:
    return sum(bool(run.warnings) for run in runs), len(runs)
