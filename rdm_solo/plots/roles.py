"""The picture of :mod:`rdm_solo.roles`: a panel a method and filter, as in the paper's Figure 5."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from rdm_solo.plots import style

if TYPE_CHECKING:
    from rdm_solo.runs.roles_file import Roles

__all__ = ["draw"]

# Okabe and Ito's, dark to light: apart for the colour-blind; dashes and markers tell in grey.
COLORS = ("#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", (0, (4, 1.6)), (0, (1.2, 1.2)))
# Names with the paper's letters, for a picture.
SHOWN = {
    "g": r"the run's own, $g=\sqrt{\lambda^p/\lambda^z}$",
    "omega": r"ideal, $\omega=\lambda^+/\lambda^z$",
    "omega, directional": r"ideal, along the target's eigenvectors",
}
PANEL = (4.6, 4.6)  # inches, key included
MARKS = 14  # of one curve


@style.styled
def draw(roles: Sequence[Roles], columns: int = 2) -> Figure:
    """Filters over eigenvalues, both on log axes; each panel's key stands below it.

    Runs of one label, such as seeds, share a panel: the first one's curves have markers, the
    others' are thin.
    """
    groups: dict[str, list[Roles]] = {}
    for role in roles:
        groups.setdefault(role.label, []).append(role)
    if not groups:
        raise ValueError("draw() needs at least one run's roles.")
    across = min(columns, len(groups))
    down = -(-len(groups) // across)
    figure = Figure(figsize=(PANEL[0] * across, PANEL[1] * down), layout="constrained", dpi=150)
    FigureCanvasAgg(figure)  # the one that measures text
    for i, group in enumerate(groups.values()):
        _panel(figure.add_subplot(down, across, i + 1), group)
    if words := _left_out(roles):
        figure.supxlabel(words, fontsize=7.5, color="0.3")
    figure.draw_without_rendering()  # settles the layout while the style holds
    figure.set_layout_engine("none")
    return figure


def _left_out(roles: Sequence[Roles]) -> str:
    """What a log axis has no place for, of what is drawn."""
    gone = {s.name for run in roles for s in run.series if not (s.value > 0).all()}
    said = []
    if gone - {"g"}:
        said.append("ω ≤ 0 is not shown")
    if "g" in gone:
        said.append("g is not shown where the online eigenvalues are zero")
    return f"On the log axes {', '.join(said)}." if said else ""


def _panel(axes: Axes, group: Sequence[Roles]) -> None:
    first = group[0]
    for run in reversed(group):
        for series, look in zip(run.series, _styles(run)):
            # 0 has no place on a log axis.
            passed = np.where(series.value > 0, series.value, np.nan)
            if run is not first:
                look = {"color": look["color"], "linestyle": look["linestyle"]}
                axes.plot(series.lam, passed, linewidth=0.6, alpha=0.45, **look)
                continue
            own = series.name == run.own and run.branch == "target"
            axes.plot(
                *(series.lam, passed),
                label=f"{SHOWN.get(series.name, series.name)}{' (this run)' * own}",
                linewidth=2.4 if own else 1.5,
                markersize=4.2,
                markevery=max(1, -(-len(series.lam) // MARKS)),
                **look,
            )
    axes.set_yscale("log")
    style.log_axis(axes.xaxis)
    online = first.branch == "online"
    axes.set_xlabel(
        r"target eigenvalue $\lambda^z$" if online else r"online eigenvalue $\lambda^p$"
    )
    axes.set_ylabel("online filter" if online else r"target filter $\sqrt{\lambda^z/\lambda^p}$")
    others = len(group) - 1
    notes = [first.note, f"thin: {others} other seed{'s' * (others > 1)}" * bool(others)]
    words = "; ".join(filter(None, notes))
    style.panel_title(axes, first.label + f" ({words})" * bool(words))
    if not online:
        axes.axhline(1, color="0.5", linewidth=0.8, zorder=0)
    _ticks(axes)
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, -0.17),
        ncols=1 if online else 2,
        frameon=False,
        handlelength=3.2,
        columnspacing=1.2,
    )


def _ticks(axes: Axes) -> None:
    """Plain numbers beside a log axis, between the powers of ten too where they are few."""
    low, high = axes.get_ylim()
    between: tuple[float, ...] = (1, 2, 5) if high / low < 200 else (1,)
    if high / low < 8:
        between = (1, 1.5, 2, 3, 4, 5, 7)
    axes.yaxis.set_major_locator(LogLocator(subs=between))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def _styles(run: Roles) -> list[dict[str, Any]]:
    """Dashes by group; colour and marker by what is varied in it."""
    groups = list(dict.fromkeys(series.group for series in run.series))
    varied = [series.name.replace(series.group, "") for series in run.series]
    places = list(dict.fromkeys(varied))
    return [
        {
            "color": COLORS[places.index(what) % len(COLORS)],
            "marker": MARKERS[places.index(what) % len(MARKERS)],
            "linestyle": DASHES[groups.index(series.group) % len(DASHES)],
        }
        for what, series in zip(varied, run.series)
    ]
