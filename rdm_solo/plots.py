"""The paper's figures, drawn from runs: each function returns a matplotlib figure and only draws."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from rdm_solo.plot_style import (
    BLACK,
    GREEN,
    MARKED,
    ONLINE,
    STYLE,
    TARGET,
    figure,
    finish,
    log_axis,
    save,
    say,
    styled,
)

__all__ = ["STYLE", "epoch_picture", "figure", "finish", "save"]

SORTED = {"color": BLACK, "linestyle": "-", "marker": "o", "label": "g, sorted eigenvalues"}
DIRECTIONAL = {
    **{"color": GREEN, "linestyle": "none", "marker": "x"},
    "label": "g, along the target's eigenvectors",
}
G = r"$g(\lambda^z_i)=\sqrt{\lambda^p_i/\lambda^z_i}$"


@styled
def epoch_picture(arrays: Mapping[str, np.ndarray], title: str = "") -> Figure:
    """One epoch's eigenvalues of both branches, and its filter curve (the paper's Figure 4).

    ``arrays`` has ``lam_online``, ``lam_target``, ``filter_curve`` and, if measured,
    ``filter_curve_directional``, each of shape ``(k,)``.
    """
    made, (left, right) = figure(2, panel=(3.5, 2.7))
    draw_eigenvalues(left, arrays)
    draw_filter(right, arrays)
    return finish(made, _keys(left, right), title)


def draw_eigenvalues(axes: Axes, arrays: Mapping[str, np.ndarray]) -> None:
    """Eigenvalues of both branches by their index, as many as hold 99.99 % of the target's sum."""
    m = top(np.asarray(arrays["lam_target"]))
    for name, style in (("target", TARGET), ("online", ONLINE)):
        lam = above_rounding(np.asarray(arrays[f"lam_{name}"]))[:m]
        points(axes, np.arange(1, len(lam) + 1), lam, label=name, **style)
    axes.set(xlabel="index i", ylabel=r"eigenvalue $\lambda_i$")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, min_n_ticks=1))
    close(axes, "no eigenvalue above rounding", axes.yaxis)


def draw_filter(axes: Axes, arrays: Mapping[str, np.ndarray]) -> None:
    """The filter curve against the target's eigenvalues, by rank and by direction."""
    lam = above_rounding(np.asarray(arrays["lam_target"]))[: top(np.asarray(arrays["lam_target"]))]
    for name, style in (("filter_curve_directional", DIRECTIONAL), ("filter_curve", SORTED)):
        if name in arrays:
            points(axes, lam, np.asarray(arrays[name])[: len(lam)], **style)
    axes.set(xlabel=r"$\lambda^z_i$", ylabel=G)
    axes.set_ylim(0, 1.06 * axes.get_ylim()[1])
    close(axes, "no filter: nothing above rounding", axes.xaxis)


def points(axes: Axes, x: np.ndarray, y: np.ndarray, **style: object) -> None:
    """A line through what was measured: marked where the points are few, nothing at NaN."""
    measured = np.isfinite(x) & np.isfinite(y)
    if measured.sum() > MARKED:
        style["markersize"] = 1.8 if style.get("linestyle") == "none" else 0
    axes.plot(x[measured], y[measured], **style)  # type: ignore[arg-type]


def close(axes: Axes, empty: str, logarithmic: object) -> None:
    """Log scale where there is something to scale, and words where there is nothing."""
    if not any(len(line.get_xdata()) for line in axes.lines):  # type: ignore[arg-type]
        say(axes, empty)
    elif logarithmic is not None:
        log_axis(logarithmic)  # type: ignore[arg-type]


def above_rounding(lam: np.ndarray) -> np.ndarray:
    """Eigenvalues with NaN for those that are rounding noise, which a log axis would magnify.

    >>> above_rounding(np.array([0.5, 1e-18, 0.0]))
    array([0.5, nan, nan])
    """
    largest = np.nanmax(lam, initial=0.0)
    noise = largest * len(lam) * np.finfo(np.float64).eps
    return np.where(lam > noise, lam, np.nan)


def top(lam: np.ndarray, share: float = 0.9999) -> int:
    """How many of the leading eigenvalues hold more than that share of the sum, as in Figure 4.

    >>> top(np.array([0.9, 0.0999, 0.0001, 0.0]))
    2
    """
    lam = np.nan_to_num(np.maximum(lam, 0.0))
    # Rounding of the sum must not move the limit by one.
    missing = np.cumsum(lam) < (share - 1e-9) * lam.sum()
    return min(int(missing.sum()) + 1, len(lam))


def _keys(*panels: Axes) -> list[Line2D]:
    """One entry for each name in the panels."""
    lines = {str(line.get_label()): line for axes in panels for line in axes.lines}
    return list(lines.values())
