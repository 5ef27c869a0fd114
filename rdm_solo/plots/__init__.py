"""The paper's figures: each entry of ``PLOTS`` draws runs as a matplotlib figure.

Modules are imported on first use, so a training run only loads the figure that it draws.

>>> from pathlib import Path
>>> from rdm_solo import plots, runs
>>> figure = plots.effective_rank(runs.find([Path("runs")]))  # doctest: +SKIP
>>> plots.save(figure, Path("figures"), "erank")  # doctest: +SKIP
[PosixPath('figures/erank.png'), PosixPath('figures/erank.pdf')]
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rdm_solo.plots.eigenvalues import epoch_picture as epoch_picture
    from rdm_solo.plots.entry import Plot as Plot
    from rdm_solo.plots.filter_function import draw_filter as draw_filter

# Each figure's module, in the report's order. The report shows four without a click.
_FIGURES = {
    "sweep": "settings",
    "comparison": "settings",
    "effective_rank": "epochs",
    "accuracies": "epochs",
    "losses": "epochs",
    "spectra": "eigenvalues",
    "symmetric": "eigenvalues",
    "variants": "eigenvalues",
    "alignment": "epochs",
    "measures": "epochs",
    "other_charts": "epochs",
}
_MODULES = {
    **_FIGURES,
    "Plot": "entry",
    "draw_filter": "filter_function",
    "epoch_picture": "eigenvalues",
    "rank_picture": "ranks",
    "save": "style",
}
__all__ = ["PLOTS", *_MODULES]


def __getattr__(name: str) -> Any:
    if name == "PLOTS":
        return tuple(map(__getattr__, _FIGURES))
    if name in _MODULES:
        return getattr(importlib.import_module(f"rdm_solo.plots.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
