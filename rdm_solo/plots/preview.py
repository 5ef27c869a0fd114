"""Pictures of a filter, and of the ranks that Theorem 4 predicts."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from rdm_solo.plots import style
from rdm_solo.runs.prediction import Prediction
from rdm_solo.theory.filter_effect import Preview, called
from rdm_solo.theory.rank_path import Path

# What is measured is drawn last, over the others.
PATHS: dict[str, dict[str, Any]] = {
    "perfect_positives": {
        **{"color": "0.55", "linestyle": ":"},
        "label": "the first epoch's filter, ω = 1",
    },
    "first_epoch": {
        **{"color": style.GREEN, "linestyle": "--", "marker": "^"},
        "label": "the first epoch's filter and ω",
    },
    "every_epoch": {
        **{"color": style.PURPLE, "linestyle": "-.", "marker": "D"},
        "label": "every epoch's filter and ω (a fit)",
    },
    "measured": {"color": style.BLACK, "linestyle": "-", "marker": "o", "label": "measured"},
}


@style.styled
def draw_filter(seen: Preview, path: Path, note: str = "") -> Figure:
    """The function as it is given, the online filter that it amounts to, and the rank's path."""
    made, (given, curve, rank) = style.figure(3, panel=(2.9, 2.5))
    online = seen.branch == "online"
    own = style.ONLINE if online else style.TARGET
    _line(given, seen.sigma, seen.gain(seen.sigma), own["color"])
    given.set(xlabel=r"singular value $\sigma$", ylabel=rf"${'g' if online else 'h'}(\sigma)$")
    style.panel_title(given, f"{seen.branch} filter: {called(seen.own)}")
    real = seen.curve.isfinite()
    _line(curve, seen.lam_z[real], seen.curve[real], style.BLACK)
    curve.set(xlabel=r"$\lambda^z_i$", ylabel=r"$g=\sqrt{\lambda^p_i/\lambda^z_i}$")
    style.panel_title(curve, f"as an online filter: {called(seen.online)}")
    every = style.marked(len(path.online))
    rank.plot(path.target, label="target", markevery=every, **style.TARGET)
    rank.plot(path.online, label="online", markevery=every, **style.ONLINE)
    rank.set(xlabel="step", ylabel="effective rank")
    rank.set_ylim(bottom=0)
    style.panel_title(rank, "predicted by Theorem 4")
    return style.finish(made, seen.name, note)


def _line(axes: Axes, x: Tensor, y: Tensor, color: str) -> None:
    """Log axes where values are positive and spread; a line at zero where signs change."""
    axes.plot(x, y, color=color, marker="o", markersize=3, markevery=style.marked(len(x)))
    for axis, values in ((axes.xaxis, x), (axes.yaxis, y)):
        if float(values.min()) > 0 and float(values.max()) > 3 * float(values.min()):
            style.log_axis(axis)
    if float(y.min()) < 0:
        axes.axhline(0, color="0.5", linewidth=0.8)
    elif float(y.max()) <= 3 * float(y.min()):
        axes.set_ylim(0, 1.15 * float(y.max()))


@style.styled
def draw_prediction(prediction: Prediction) -> Figure:
    """Effective ranks as Theorem 4 predicts them, beside what the run measured."""
    made, panels = style.figure(2, panel=(3.6, 2.8))
    every = style.marked(len(prediction.epochs))
    for axes, branch in zip(panels, ("online", "target")):
        for name, look in PATHS.items():
            ranks = getattr(getattr(prediction, name), branch)
            axes.plot(prediction.epochs, ranks, markersize=3, markevery=every, **look)
        axes.set_ylabel(f"effective rank, {branch}")
        axes.set_ylim(bottom=0)
        style.epoch_axis(axes)
    title = f"{prediction.label}: rank predicted by Theorem 4, and measured"
    return style.finish(made, title, prediction.note)
