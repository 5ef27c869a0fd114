"""The paper's Figure 5: a panel for each method, with a legend on the right."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from rdm_solo.plots import style

if TYPE_CHECKING:
    from rdm_solo.evaluate.figure5 import Figure5

# Legend labels in the paper's notation.
NAMES = {
    "g": r"the run's, $g=\sqrt{\lambda_p/\lambda_z}$",
    "omega": r"optimal, $\omega=\lambda_+/\lambda_z$",
    "omega, directional": r"optimal, along the target's eigenvectors",
}


def draw(runs: Sequence["Figure5"]) -> Figure:
    """Draw filters against eigenvalues on log axes; points with ω ≤ 0 cannot be shown."""
    figure, panels = style.figure(len(runs), columns=1, panel=(4.2, 2.1))
    for axes, run in zip(panels, runs):
        # The colour shows the variant, and the dashes show the group.
        colours = style.looks(curve.variant for curve in run.curves)
        dashes = style.looks(curve.group for curve in run.curves)
        for curve in run.curves:
            name = NAMES.get(curve.name, curve.name)
            look = dict(colours[curve.variant])
            look["linestyle"] = dashes[curve.group]["linestyle"]
            look["label"] = f"{name}, slope {curve.slope:.2f}"
            if curve.trained and run.branch == "target":
                look["label"] += " (this run)"
                look["linewidth"] = 2.4
            positive = np.where(curve.value > 0, curve.value, np.nan)
            style.draw_line(axes, curve.lam, positive, look)
        style.log_axis(axes.xaxis)
        style.log_axis(axes.yaxis)
        if run.branch == "online":
            axes.set_xlabel(r"target's eigenvalue $\lambda_z$")
            axes.set_ylabel("online filter")
        else:
            axes.set_xlabel(r"online eigenvalue $\lambda_p$")
            axes.set_ylabel(r"target filter $\sqrt{\lambda_z/\lambda_p}$")
            axes.axhline(1, color="0.5", linewidth=0.8, zorder=0)
        title = run.label
        if run.note:
            title += f" ({run.note})"
        style.panel_title(axes, title)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # otherwise legends would shrink the panels
    for axes in panels:
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure
