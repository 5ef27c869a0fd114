"""Filter curves and spectra over epochs, for the loggers."""

from collections.abc import Mapping
from typing import Any

import numpy as np

PICTURE = "pictures/spectra"

# W&B charts with a line per epoch: array name and title.
CHARTS = {
    "filter_curve": "filter g by index, sorted eigenvalues",
    "filter_curve_directional": "filter g by index, along the target's eigenvectors",
    "ideal_filter": "ideal filter by index",
    "lam_online": "log10 of the online branch's eigenvalues",
    "lam_target": "log10 of the target branch's eigenvalues",
}
LINES = 8  # per chart
POINTS = 100  # per line, evenly spaced on a log axis; W&B draws at most 10,000 rows


def draw(history: Mapping[int, Mapping[str, np.ndarray]]) -> dict[str, Any]:
    """Return W&B charts by key, with one line per epoch for up to ``LINES`` evenly spaced epochs.

    ``history`` has the arrays of each epoch, counted from 1, as in a run's ``spectra`` folder.
    """
    import wandb

    charts: dict[str, Any] = {}
    for name, title in CHARTS.items():
        epochs = [epoch for epoch in sorted(history) if name in history[epoch]]
        rows = np.linspace(0, len(epochs) - 1, min(LINES, len(epochs))).round().astype(int)
        lines = [_line(history[epochs[i]][name], name.startswith("lam_")) for i in rows]
        if any(x for x, _ in lines):
            charts[f"charts/{name}"] = wandb.plot.line_series(
                xs=[x for x, _ in lines],
                ys=[y for _, y in lines],
                keys=[f"epoch {epochs[i]}" for i in rows],
                title=title,
                xname="index i",
            )
    return charts


def histograms(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the base-10 logarithms of an epoch's eigenvalues by histogram name.

    >>> histograms({"lam_online": np.array([100.0, 0.0]), "rows": np.array(64)})
    {'spectra/log10_online': array([2.])}
    """
    return {
        name.replace("lam_", "spectra/log10_"): np.log10(values[values > 0])
        for name, values in arrays.items()
        if name.startswith("lam_") and (values > 0).any()
    }


def _line(values: np.ndarray, logarithmic: bool) -> tuple[list[int], list[float]]:
    """Return a subsample of indices (from 1) and values, without missing values."""
    indices = np.unique(np.geomspace(1, len(values), POINTS).round().astype(int)) - 1
    indices = indices[np.isfinite(values[indices]) & ((values[indices] > 0) | (not logarithmic))]
    points = np.log10(values[indices]) if logarithmic else values[indices]
    return (indices + 1).tolist(), points.astype(float).tolist()
