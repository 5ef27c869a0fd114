"""The figure of runs whose p changes in steps, against runs that keep their first p."""

from collections import defaultdict
from functools import partial

import numpy as np
from matplotlib.figure import Figure

from rdm_solo.filters.schedules import as_schedule
from rdm_solo.plots import style
from rdm_solo.plots.across_settings import accuracy
from rdm_solo.plots.epochs import ACCURACIES, axis_label, draw_curve, epoch_axes
from rdm_solo.plots.plot import Groups, Plot
from rdm_solo.runs.folder import RunFolder
from rdm_solo.runs.groups import Curve, Group, by_epoch, over_seeds

RANK = "erank/online"


def _by_unswitched(groups: Groups) -> dict[Group, list[Group]]:
    """Return each setting whose p is constant, with the settings that switch from this p."""
    constant = {}
    switched = defaultdict(list)
    for group in groups:
        p = group.first.config.get("p")
        if p is None:
            continue
        schedule = as_schedule(p, epochs=1)
        if schedule.kind != "steps":
            continue
        options = dict(group.first.setting)
        for name in group.first.setting:
            if name == "p" or name.startswith("p."):
                del options[name]
        start = (schedule(0), frozenset(options.items()))
        if len(schedule.exponents) == 1:
            constant[start] = group
        else:
            switched[start].append(group)
    rows = {}
    for start, unswitched in constant.items():
        members = [group for group in switched[start] if _pairs(group, unswitched)]
        if members:
            rows[unswitched] = members
    return rows


def _pairs(group: Group, unswitched: Group) -> list[tuple[RunFolder, RunFolder]]:
    """Return the runs of two settings with equal seeds."""
    partners = {run.seed: run for run in unswitched.counted}
    return [(run, partners[run.seed]) for run in group.counted if run.seed in partners]


def _choose(groups: Groups) -> list[Group]:
    chosen = []
    for unswitched, members in _by_unswitched(groups).items():
        chosen += [unswitched, *members]
    return chosen


@partial(
    Plot,
    title="When p is switched",
    caption="Each run against the run of the same seed that keeps its first p. On the left, the "
    "logarithm of the ratio of their online ranks: -0.69 is half the rank. On the right, the "
    "difference of their accuracies. Dotted lines show when p changes. If the filter raises the "
    "rank, expect the line to fall after the filter is switched off, and to rise after it is "
    "switched on.",
    needs="runs with p={schedule: steps, ...}, and runs of the same seeds with its first p",
    columns=(RANK, *ACCURACIES),
    choose=_choose,
)
def switch(groups: Groups, looks: style.Looks) -> Figure:
    rows = _by_unswitched(groups)
    measured = accuracy(groups)
    figure, panels = style.figure(2 * len(rows), columns=2)
    for (unswitched, members), ranks, accuracies in zip(rows.items(), panels[::2], panels[1::2]):
        epochs: set[int] = set()  # in which p changes
        for group in members:
            epochs |= as_schedule(group.first.config.p).exponents.keys() - {1}
        for axes, column in ((ranks, RANK), (accuracies, measured)):
            for group in members:
                draw_curve(axes, _difference(group, unswitched, column), looks[group.label])
            label = f"{axis_label(column)} minus unswitched"
            if column == RANK:
                label = "ln(online rank ÷ unswitched)"
            epoch_axes(axes, label)
            for epoch in epochs:
                axes.axvline(epoch - 0.5, color=style.GREY, linestyle=style.DOTS, lw=1)
        style.panel_title(ranks, f"against {unswitched.label}")
    return figure


def _difference(group: Group, unswitched: Group, column: str) -> Curve:
    """Return the difference between the runs of each seed; of ranks that of their logarithms."""
    runs, references = zip(*_pairs(group, unswitched))
    x, values = by_epoch([*runs, *references], column)
    if column == RANK:
        values = np.log(values)
    switched, reference = np.split(values, 2)
    difference = switched - reference
    measured = np.isfinite(difference).any(axis=0)
    return over_seeds(x[measured], difference[:, measured])
