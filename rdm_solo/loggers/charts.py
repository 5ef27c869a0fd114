"""Filter curves and spectra over epochs as W&B's own charts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["CHARTS", "PICTURE", "draw", "some"]

PICTURE = "pictures/spectra"

# Charts with a line for each of some epochs: array, key, title.
CHARTS = [
    ("filter_curve", "charts/filter_curve", "filter g by index, sorted eigenvalues"),
    (
        "filter_curve_directional",
        "charts/filter_curve_directional",
        "filter g by index, along the target's eigenvectors",
    ),
    ("ideal_filter", "charts/ideal_filter", "ideal filter by index"),
    ("lam_online", "charts/eigenvalues_online", "log10 of the online branch's eigenvalues"),
    ("lam_target", "charts/eigenvalues_target", "log10 of the target branch's eigenvalues"),
]
LINES = 8  # epochs in a chart
POINTS = 100  # of a line, evenly spaced on a logarithmic scale; W&B draws 10,000 rows in all


def draw(history: Mapping[int, Mapping[str, np.ndarray]]) -> dict[str, Any]:
    """Charts with a line for each of some epochs, and histograms of the last epoch's eigenvalues,
    which W&B shows over all steps; by their keys.

    ``history`` has each epoch's arrays, counted from 1, as in its ``spectra`` folder.
    """
    import wandb

    shown: dict[str, Any] = {}
    for name, key, title in CHARTS:
        epochs = some([epoch for epoch in sorted(history) if name in history[epoch]])
        lines = [_line(history[epoch][name], name.startswith("lam_")) for epoch in epochs]
        if any(x for x, _ in lines):
            shown[key] = wandb.plot.line_series(
                xs=[x for x, _ in lines],
                ys=[y for _, y in lines],
                keys=[f"epoch {epoch}" for epoch in epochs],
                title=title,
                xname="index i",
            )
    for name, values in history[max(history)].items():
        powers = np.log10(values[values > 0]) if name.startswith("lam_") else ()
        if len(powers):
            shown[f"spectra/log10_{name.removeprefix('lam_')}"] = wandb.Histogram(powers)
    return shown


def some(epochs: list[int]) -> list[int]:
    """At most :data:`LINES` of them, evenly spaced, the first and the last among them.

    >>> some(list(range(0, 100, 10)))
    [0, 10, 30, 40, 50, 60, 80, 90]
    """
    places = np.linspace(0, len(epochs) - 1, min(LINES, len(epochs))).round().astype(int)
    return [epochs[place] for place in places]


def _line(values: np.ndarray, powers: bool) -> tuple[list[int], list[float]]:
    """Indices from 1 and values, thinned; without what was not measured."""
    places = np.unique(np.geomspace(1, len(values), POINTS).round().astype(int)) - 1
    kept = values[places]
    real = np.isfinite(kept) & ((kept > 0) | (not powers))
    shown = np.log10(kept[real]) if powers else kept[real]
    return (places[real] + 1).tolist(), shown.astype(float).tolist()
