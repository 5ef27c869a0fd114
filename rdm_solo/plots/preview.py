"""Pictures of a filter, and of the ranks that Theorem 4 predicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from rdm_solo.plots.style import (
    BLACK,
    GREEN,
    ONLINE,
    PURPLE,
    TARGET,
    epoch_axis,
    figure,
    finish,
    keys,
    log_axis,
    marked,
    panel_title,
    styled,
)
from rdm_solo.runs.prediction import Prediction
from rdm_solo.theory.filter_effect import Preview, called
from rdm_solo.theory.rank_path import Path

__all__ = ["draw_filter", "draw_prediction"]

# What is measured is drawn last, over the others.
PATHS: dict[str, dict[str, Any]] = {
    "perfect_positives": {
        **{"color": "0.55", "linestyle": ":"},
        "label": "the first epoch's filter, ω = 1",
    },
    "first_epoch": {
        **{"color": GREEN, "linestyle": "--", "marker": "^"},
        "label": "the first epoch's filter and ω",
    },
    "every_epoch": {
        **{"color": PURPLE, "linestyle": "-.", "marker": "D"},
        "label": "every epoch's filter and ω (a fit)",
    },
    "measured": {"color": BLACK, "linestyle": "-", "marker": "o", "label": "measured"},
}


@styled
def draw_filter(seen: Preview, path: Path, note: str = "") -> Figure:
    """The function as it is given, the online filter that it amounts to, and the rank's path."""
    made, (given, curve, rank) = figure(3, panel=(2.9, 2.5))
    _draw_given(given, seen)
    _draw_curve(curve, seen)
    every, steps = marked(len(path.online)), range(len(path.online))
    rank.plot(steps, path.target, label="target", markevery=every, **TARGET)
    rank.plot(steps, path.online, label="online", markevery=every, **ONLINE)
    rank.set(xlabel="step", ylabel="effective rank")
    rank.set_ylim(bottom=0)
    panel_title(rank, "predicted by Theorem 4")
    return finish(made, keys(rank), seen.name, note)


def _draw_given(axes: Axes, seen: Preview) -> None:
    online = seen.branch == "online"
    values = seen.gain(seen.sigma)
    _line(axes, seen.sigma, values, (ONLINE if online else TARGET)["color"])
    letter = "g" if online else "h"
    axes.set(xlabel=r"singular value $\sigma$", ylabel=rf"${letter}(\sigma)$")
    panel_title(axes, f"{seen.branch} filter: {called(seen.own)}")


def _draw_curve(axes: Axes, seen: Preview) -> None:
    real = seen.curve.isfinite()
    _line(axes, seen.lam_z[real], seen.curve[real], BLACK)
    axes.set(xlabel=r"$\lambda^z_i$", ylabel=r"$g=\sqrt{\lambda^p_i/\lambda^z_i}$")
    panel_title(axes, f"as an online filter: {called(seen.online)}")


def _line(axes: Axes, x: Tensor, y: Tensor, color: str) -> None:
    """Log axes where values are positive and spread; a line at zero where signs change."""
    axes.plot(x, y, color=color, marker="o", markersize=3, markevery=marked(len(x)))
    for axis, values in ((axes.xaxis, x), (axes.yaxis, y)):
        if float(values.min()) > 0 and float(values.max()) > 3 * float(values.min()):
            log_axis(axis)
    if float(y.min()) < 0:
        axes.axhline(0, color="0.5", linewidth=0.8)
    elif float(y.max()) <= 3 * float(y.min()):
        axes.set_ylim(0, 1.15 * float(y.max()))


@styled
def draw_prediction(prediction: Prediction) -> Figure:
    """Effective ranks as Theorem 4 predicts them, beside what the run measured."""
    made, panels = figure(2, panel=(3.6, 2.8))
    epochs = prediction.epochs
    for axes, branch in zip(panels, ("online", "target")):
        for name, look in PATHS.items():
            ranks: Sequence[float] = getattr(getattr(prediction, name), branch)
            axes.plot(epochs, ranks, markersize=3, markevery=marked(len(epochs)), **look)
        axes.set_ylabel(f"effective rank, {branch}")
        axes.set_ylim(bottom=0)
        epoch_axis(axes, epochs)
    title = f"{prediction.label}: rank predicted by Theorem 4, and measured"
    return finish(made, keys(panels[0]), title, prediction.note)
