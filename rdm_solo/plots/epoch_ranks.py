"""The figure of effective ranks that a run draws when training ends."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from rdm_solo.plots import style
from rdm_solo.runs.columns import COLUMNS

BRANCHES = {"erank/target": style.TARGET, "erank/online": style.ONLINE}


@style.styled
def rank_picture(metrics: Mapping[str, np.ndarray], title: str = "") -> Figure:
    """Draw both branches' effective rank over the epochs of one run's table."""
    figure, (axes,) = style.figure(1)
    epochs = metrics["epoch"]
    for column, look in BRANCHES.items():
        style.draw_line(axes, epochs, metrics[column], look)
    label = COLUMNS["erank/target"].chart
    style.y_label(axes, label)
    style.start_at_zero(axes)
    style.integer_axis(axes, "epoch")
    style.panel_title(axes, title)
    return style.finish(figure)
