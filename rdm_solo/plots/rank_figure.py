"""The figure of effective ranks that a run draws when training ends."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from rdm_solo.plots import style
from rdm_solo.runs.columns import COLUMNS


@style.styled
def rank_picture(metrics: Mapping[str, np.ndarray], title: str = "") -> Figure:
    """Draw both branches' effective rank over the epochs of one run's table."""
    figure, (axes,) = style.figure(1)
    epochs = metrics["epoch"]
    style.draw_line(axes, epochs, metrics["erank/target"], style.TARGET)
    style.draw_line(axes, epochs, metrics["erank/online"], style.ONLINE)
    style.y_label(axes, COLUMNS["erank/target"].chart)
    style.start_at_zero(axes)
    style.integer_axis(axes, "epoch")
    style.panel_title(axes, title)
    return style.finish(figure)
