"""The picture of :mod:`rdm_solo.roles`: a panel a method and filter, as in the paper's Figure 5."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rdm_solo.plots import style

if TYPE_CHECKING:
    from rdm_solo.runs.roles_file import Roles

# Names with the paper's letters, for a picture.
SHOWN = {
    "g": r"the run's own, $g=\sqrt{\lambda^p/\lambda^z}$",
    "omega": r"ideal, $\omega=\lambda^+/\lambda^z$",
    "omega, directional": r"ideal, along the target's eigenvectors",
}


@style.styled
def draw(roles: Sequence["Roles"]) -> Figure:
    """Filters over eigenvalues, both on log axes; each panel's key stands beside it.

    Runs of one label, such as seeds, share a panel: the first one's curves have markers, the
    others' are thin.
    """
    groups: dict[str, list[Roles]] = {}
    for role in roles:
        groups.setdefault(role.label, []).append(role)
    figure, panels = style.figure(len(groups), columns=1, panel=(4.2, 2.8))
    for axes, group in zip(panels, groups.values()):
        _panel(axes, group)
    return style.finish(figure, note=_left_out(roles))


def _left_out(roles: Sequence["Roles"]) -> str:
    """What a log axis has no place for, of what is drawn."""
    gone = {s.name for run in roles for s in run.series if not (s.value > 0).all()}
    said = []
    if gone - {"g"}:
        said.append("ω ≤ 0 is not shown")
    if "g" in gone:
        said.append("g is not shown where the online eigenvalues are zero")
    return f"On the log axes {', '.join(said)}." if said else ""


def _panel(axes: Axes, group: Sequence["Roles"]) -> None:
    first, *others = group
    online = first.branch == "online"
    # A colour for what is varied, dashes for the group of curves in which it is.
    varied = style.looks(s.name.replace(s.group, "") for run in group for s in run.series)
    dashes = style.looks(s.group for run in group for s in run.series)
    for run in [*others, first]:
        for series in run.series:
            look = varied[series.name.replace(series.group, "")] | {
                "linestyle": dashes[series.group]["linestyle"],
                "label": SHOWN.get(series.name, series.name),
            }
            if run is not first:
                look |= {"linewidth": 0.6, "alpha": 0.45, "marker": "", "label": "_thin"}
            elif series.name == run.own and not online:
                look |= {"linewidth": 2.4, "label": f"{look['label']} (this run)"}
            # 0 has no place on a log axis.
            passed = np.where(series.value > 0, series.value, np.nan)
            axes.plot(series.lam, passed, markevery=style.marked(len(passed)), **look)
    style.log_axis(axes.xaxis)
    style.log_axis(axes.yaxis)
    if online:
        axes.set(xlabel=r"target eigenvalue $\lambda^z$", ylabel="online filter")
    else:
        axes.set_xlabel(r"online eigenvalue $\lambda^p$")
        axes.set_ylabel(r"target filter $\sqrt{\lambda^z/\lambda^p}$")
        axes.axhline(1, color="0.5", linewidth=0.8, zorder=0)
    thin = f"thin: {len(others)} other seed{'s' * (len(others) > 1)}" if others else ""
    words = "; ".join(filter(None, [first.note, thin]))
    style.panel_title(axes, f"{first.label} ({words})" if words else first.label)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
